//! What perf-gate reads from outside, against what V8 and node say of themselves from inside.

mod collections;
mod external;
mod heap;
