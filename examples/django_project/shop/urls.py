"""The pages of the shop: orders, the admin, and the dashboard of the jobs."""

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from .jobs import ship
from .models import Order, Shipment


@csrf_exempt  # the example has no page with a form
@transaction.atomic
def order(request: HttpRequest, number: int) -> JsonResponse:
    """The order and the run are stored in one transaction: both, or neither."""
    Order.objects.create(number=number)
    run = ship.blocking.enqueue(number=number)
    return JsonResponse({"run": run.id})


def orders(request: HttpRequest) -> JsonResponse:
    shipped = Shipment.objects.order_by("number").values_list("number", "process")
    return JsonResponse(list(shipped), safe=False)


urlpatterns = [
    path("orders", orders),
    path("orders/<int:number>", order),
    path("admin/", admin.site.urls),
    path("jobs/", include("mainspring.contrib.django.urls")),
]
