//! What is known about V8, and where to find it in a given binary.
//!
//! [`table`], [`external`] and [`labs`] are the knowledge: one row per function that is probed, with its
//! mangled names, argument registers and the versions that differ. [`plan`] resolves the table against one
//! file. [`locate`] finds the library when V8 is not in the executable itself, [`cache`] keeps resolved
//! plans, [`reasons`] and [`spaces`] translate V8's numbers, [`version`] reads versions out of a file that
//! is never run for it.

pub mod cache;
pub mod external;
pub mod labs;
pub mod locate;
pub mod plan;
pub mod reasons;
pub mod spaces;
pub mod table;
pub mod version;

pub use plan::{Plan, Point, PointKind};
pub use version::Version;
