//! The target: the program under observation, from before its first instruction to its last orphan.
//!
//! A run goes through these in order. [`secure_stdio`] and [`Inherited::capture`] come first in
//! `main`, before perf-gate changes anything about itself, so that the child can be given exactly
//! what perf-gate was given. [`Identity::resolve`] decides whose program it is, [`launch::spawn`]
//! forks it and holds it at a gate, [`Suspended::release`] opens the gate once every probe sits.
//! [`Signals`] then tells what the outside wants, [`Reaper`] who ended and how, and
//! [`exit::code_for`] what that means for perf-gate's own exit code.

mod child;
pub mod exit;
pub mod hold;
pub mod identity;
pub mod inherit;
pub mod launch;
pub mod reap;
mod search;
pub mod signals;
#[cfg(test)]
mod testing;

pub use hold::Hold;
pub use identity::{Identity, IdentityError};
pub use inherit::{Inherited, secure_stdio};
pub use launch::{Launch, LaunchError, Released, Running, Suspended};
pub use reap::{Reaped, Reaper, Usage};
pub use signals::{SignalEvent, Signals};
