// metrics_log
