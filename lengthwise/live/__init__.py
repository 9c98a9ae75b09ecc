"""Quality of scores on live traffic."""
