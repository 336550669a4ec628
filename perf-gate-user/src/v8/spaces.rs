//! V8's space ids by version.
//!
//! An id is the position of the space in `v8.getHeapSpaceStatistics()`, whose names are used here.

use super::Version;

const V10: &[&str] = &[
    "read_only_space",
    "old_space",
    "code_space",
    "map_space",
    "large_object_space",
    "code_large_object_space",
    "new_large_object_space",
    "new_space",
];
const V11: &[&str] = &[
    "read_only_space",
    "new_space",
    "old_space",
    "code_space",
    "shared_space",
    "new_large_object_space",
    "large_object_space",
    "code_large_object_space",
    "shared_large_object_space",
];
const V12: &[&str] = &[
    "read_only_space",
    "new_space",
    "old_space",
    "code_space",
    "shared_space",
    "trusted_space",
    "new_large_object_space",
    "large_object_space",
    "code_large_object_space",
    "shared_large_object_space",
    "trusted_large_object_space",
];
const V13: &[&str] = &[
    "read_only_space",
    "new_space",
    "old_space",
    "code_space",
    "shared_space",
    "trusted_space",
    "shared_trusted_space",
    "new_large_object_space",
    "large_object_space",
    "code_large_object_space",
    "shared_large_object_space",
    "shared_trusted_large_object_space",
    "trusted_large_object_space",
];

fn names(version: Option<Version>) -> &'static [&'static str] {
    match version.map(|v| v.major) {
        Some(..=10) => V10,
        Some(11) => V11,
        Some(12) => V12,
        Some(13..) | None => V13,
    }
}

/// Name of a space; `None` for an id that this version does not have.
#[must_use]
pub fn name(version: Option<Version>, id: u32) -> Option<&'static str> {
    names(version).get(id as usize).copied()
}

/// Id of the old space.
#[must_use]
pub fn old_space_id(version: Option<Version>) -> u32 {
    if version.is_some_and(|v| v.major <= 10) {
        1
    } else {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::{Version, name, old_space_id};

    #[test]
    fn old_space_is_where_it_is_called_so() {
        for v in ["10.2", "11.3", "12.4", "13.6", "14.1", "14.6", "99.0"] {
            let v = Version::parse(v);
            assert_eq!(name(v, old_space_id(v)), Some("old_space"));
            assert_eq!(name(v, 16), None);
            assert!((0..perf_gate_ebpf::SPACES as u32 + 1).any(|id| name(v, id).is_none()));
        }
        assert_eq!(name(None, old_space_id(None)), Some("old_space"));
    }
}
