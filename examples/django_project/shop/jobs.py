"""The jobs of the shop: Mainspring finds this module by its name."""

import os

from mainspring import RunContext
from mainspring.contrib.django import job

from .models import Order, Shipment, StockCount


@job(retries=3)
def ship(number: int) -> None:
    Shipment.objects.create(number=number, process=os.getpid())


@job("* * * * * *")
async def count_stock(ctx: RunContext) -> None:
    await StockCount.objects.acreate(slot=ctx.scheduled_at.isoformat())


@job(isolation="process")
def audit() -> int:
    return int(Order.objects.count())
