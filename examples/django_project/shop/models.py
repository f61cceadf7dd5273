"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)


class Shipment(models.Model):
    number = models.IntegerField()
    process = models.IntegerField()


class StockCount(models.Model):
    slot = models.CharField(max_length=40)
