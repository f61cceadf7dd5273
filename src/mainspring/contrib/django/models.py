"""The dashboard as a model without a table: so it has permissions, and a place in the admin."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name_plural = "dashboard"
