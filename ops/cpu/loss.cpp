// loss
