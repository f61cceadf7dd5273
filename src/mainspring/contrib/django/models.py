"""The dashboard as a model: so it has permissions, and a place in the admin. Its table stays empty:
Django reads that of each model, for example in `dumpdata`."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    class Meta:
        default_permissions = ("view", "change")
        verbose_name_plural = "dashboard"
