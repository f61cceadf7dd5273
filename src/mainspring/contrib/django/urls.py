"""The dashboard and the HTTP API: `path("jobs/", include("mainspring.contrib.django.urls"))`."""

from __future__ import annotations

from django.urls import path

from mainspring.contrib.django.dashboard import dashboard

app_name = "mainspring"
urlpatterns = [path("", dashboard, name="dashboard"), path("<path:path>", dashboard)]
