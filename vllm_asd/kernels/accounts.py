"""The columns of an account, which the ledger writes and the kernels read. float64, nats unless said."""

REMAINING, GRANTED, BUDGET, REFILL, GATE, BLOCK_CAP, SHADOW = range(7)
NUM_COLUMNS = 7
