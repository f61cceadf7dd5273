"""The link to the dashboard in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse

from mainspring.contrib.django.models import Dashboard


@admin.register(Dashboard)
class DashboardLink(admin.ModelAdmin):
    """Is shown to those who may see the dashboard, where the project has it in its `urls.py`."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return redirect("mainspring:dashboard")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        try:
            reverse("mainspring:dashboard")
        except NoReverseMatch:
            return False
        return bool(super().has_view_permission(request, obj))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_delete_permission = has_change_permission
