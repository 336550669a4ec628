//! Exit codes: the whole contract in one place.
//!
//! A gate is read by scripts, so its codes must not drift apart between commands. perf-gate speaks
//! with 0, 1, 2, 64, 66, 126 and 127; every other code that comes out of `watch` is the watched
//! program's own, or 128 + n when signal n killed it, as shells report it.

use crate::model::End;

/// Everything asked for was measured and held.
pub const PASS: u8 = 0;
/// A budget or a scenario failed.
pub const FAIL: u8 = 1;
/// The detector cannot vouch for this run.
pub const CANNOT_VOUCH: u8 = 2;
/// Wrong usage of the command line.
pub const USAGE: u8 = 64;
/// An input file is missing or malformed.
pub const BAD_INPUT: u8 = 66;
/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// The code that stands for how the direct child ended.
///
/// An end that nobody saw is never turned into a pass.
#[must_use]
pub fn code_for(end: End) -> u8 {
    match end {
        // The kernel keeps only the low byte of an exit status.
        End::Exited(code) => (code & 0xff) as u8,
        End::Killed { signal, .. } => 128u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
        End::Replaced | End::StillRunning | End::Unknown => CANNOT_VOUCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_or_128_plus_signal() {
        assert_eq!(code_for(End::Exited(0)), PASS);
        assert_eq!(code_for(End::Exited(42)), 42);
        assert_eq!(code_for(End::Exited(255)), 255);
        for (signal, code) in [(2, 130), (6, 134), (9, 137), (15, 143), (64, 192)] {
            let core = signal == 6;
            assert_eq!(code_for(End::Killed { signal, core }), code);
        }
    }

    #[test]
    fn an_unseen_end_is_not_a_pass() {
        for end in [End::Replaced, End::StillRunning, End::Unknown] {
            assert_eq!(code_for(end), CANNOT_VOUCH);
        }
    }
}
