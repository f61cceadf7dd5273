"""The tables of the shop."""

from django.db import migrations, models

ID = (
    "id",
    models.BigAutoField(primary_key=True, auto_created=True, serialize=False, verbose_name="ID"),
)


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel("Order", [ID, ("number", models.IntegerField(unique=True))]),
        migrations.CreateModel(
            "Shipment",
            [ID, ("number", models.IntegerField()), ("process", models.IntegerField())],
        ),
        migrations.CreateModel("StockCount", [ID, ("slot", models.CharField(max_length=40))]),
    )
