//! Reads what V8 itself prints under `--trace-gc`: the other witness of every collection.
