"""One module a duty: observe, decide, act, verify, record. They know the doors of `ports`, never what is behind them."""
