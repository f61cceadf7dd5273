"""The dashboard: pages that show jobs and runs and let people act on them.

    app.py          makes the application: the HTTP API with the pages
    pages.py        what all pages share: templates, who looks at them, error pages, assets
    formats.py      times, durations and numbers as people read them
    demo.py         a sample job, and the made-up fleet of `mainspring serve --demo`
    views/          the pages, one module for each noun
    templates/      their HTML
    assets/         scripts, styles and pictures; vendor/ has those of others

Pages are made on the server and read by `GET`. Every change goes to the public HTTP API, by the
scripts in the page, with the person's own session.
"""
