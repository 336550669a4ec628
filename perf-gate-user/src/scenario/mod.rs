//! Gating scenarios: `{ name, setup, hot, statsOf, teardown }` measured at N and k·N.
//!
//! The JavaScript side ([`js/measure.mjs`](../../../../js/measure.mjs)) knows how to call the hooks of a scenario
//! and nothing else. What to call next, when a function is warm, which windows count and what they
//! come to is decided here: [`steps`] is a pure state machine that is fed what the kernel side saw and
//! answers with the next step, [`outcome`] turns the windows into the measured figures, and the judge
//! ([`crate::judge::scenario`]) says pass or fail. [`desk`] carries the questions and answers;
//! [`protocol`] is their shape.

pub mod desk;
pub mod outcome;
pub mod protocol;
pub mod steps;

pub use desk::{Desk, Kept};
pub use outcome::Outcome;
