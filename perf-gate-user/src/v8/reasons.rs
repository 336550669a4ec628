//! V8's words for why it collects, by version.
//!
//! The numbers are `GarbageCollectionReason` values as the collector's functions receive them. 0 to
//! 25 mean the same from V8 10.2 to 14.6; the later ones were added, and 26 renamed, on the way.

use super::Version;
use std::borrow::Cow;

const SHARED: [&str; 26] = [
    "unknown",
    "allocation failure",
    "allocation limit",
    "context disposal",
    "counters extension",
    "debugger",
    "deserialize",
    "external memory pressure",
    "finalize incremental marking via stack guard",
    "finalize incremental marking via task",
    "full hash-table",
    "heap profiler",
    "task",
    "last resort",
    "low memory notification",
    "make heap iterable",
    "memory pressure",
    "memory reducer",
    "runtime",
    "sampling profiler",
    "snapshot creator",
    "testing",
    "external finalize",
    "global allocation limit",
    "measure memory",
    "background allocation failure",
];

/// The reason as `--trace-gc` prints it. An unknown version is read as the newest one known.
#[must_use]
pub fn text(version: Option<Version>, reason: u32) -> Cow<'static, str> {
    let since = |major| version.is_none_or(|v| v.major >= major);
    if let Some(&text) = SHARED.get(reason as usize) {
        return Cow::Borrowed(text);
    }
    Cow::Borrowed(match reason {
        26 if since(12) => "finalize concurrent MinorMS",
        26 if since(11) => "finalize MinorMC",
        27 if since(11) => "CppHeap allocation failure",
        28 if since(13) => "frozen",
        29 if since(13) => "idle context disposal",
        30 if since(14) => "finalize MinorMS for major GC",
        _ => return Cow::Owned(format!("unknown reason {reason}")),
    })
}

#[cfg(test)]
mod tests {
    use super::{Version, text};

    #[test]
    fn later_reasons_depend_on_the_version() {
        let at = |v: &str, n| text(Version::parse(v), n).into_owned();
        assert_eq!(at("10.2.154.26", 1), "allocation failure");
        assert_eq!(at("14.6.202.34", 25), "background allocation failure");
        assert_eq!(at("10.2.154.26", 26), "unknown reason 26");
        assert_eq!(at("11.3.244.8", 26), "finalize MinorMC");
        assert_eq!(at("12.4.254.21", 26), "finalize concurrent MinorMS");
        assert_eq!(at("12.4.254.21", 28), "unknown reason 28");
        assert_eq!(at("13.6.233.17", 29), "idle context disposal");
        assert_eq!(at("13.6.233.17", 30), "unknown reason 30");
        assert_eq!(at("14.1.146.11", 30), "finalize MinorMS for major GC");
        assert_eq!(text(None, 31), "unknown reason 31");
        assert_eq!(text(None, u32::MAX), "unknown reason 4294967295");
    }
}
