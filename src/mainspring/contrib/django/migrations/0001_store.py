"""Makes the store's tables where the store lies in this database. The store would also make them
itself when it is opened first: with this, a role that may change no schema can run the program."""

from __future__ import annotations

from django.db import migrations, models

from mainspring.contrib.django.store_schema import make_store_tables

ID = models.BigAutoField("ID", auto_created=True, primary_key=True, serialize=False)


class Migration(migrations.Migration):
    dependencies = ()
    operations = (
        migrations.CreateModel(
            "Dashboard",
            fields=[("id", ID)],
            options={
                "default_permissions": ("view", "change"),
                "verbose_name_plural": "dashboard",
            },
        ),
        migrations.RunPython(make_store_tables, migrations.RunPython.noop),
    )
