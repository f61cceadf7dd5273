from mainspring.schedules.cron import Cron
