//! What a run as a whole says: who belongs to the tree, what the kernel counted, what is proven, and the
//! verdict.

mod budgets;
mod counters;
mod proofs;
mod tree;
