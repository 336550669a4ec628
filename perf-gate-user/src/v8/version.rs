//! Versions of V8 and node, read from the file.
//!
//! Running a binary to ask it would run foreign code as root. V8 keeps its version in four exported
//! integers (`v8::internal::Version::major_` and so on) that even a stripped node exports; their
//! initial values lie in the data segment. Node's own version is only text: the address of its
//! headers tarball, among the first read-only data. A build without it has an unknown node version.

use crate::elf::{Image, Kind, Result, Symbol};
use std::fmt;

/// V8's version, without what an embedder appends (`-node.57`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub build: u32,
    pub patch: u32,
}

impl Version {
    /// Reads `12.4.254.21` and `12.4.254.21-node.57`; missing parts are 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', ' ', '+']).next()?;
        let mut parts = numbers.split('.').map(str::parse::<u32>);
        let major = parts.next()?.ok()?;
        let minor = parts.next()?.ok()?;
        let mut rest = || parts.next().map_or(Some(0), std::result::Result::ok);
        Some(Self {
            major,
            minor,
            build: rest()?,
            patch: rest()?,
        })
    }

    #[must_use]
    pub const fn at_least(self, major: u32, minor: u32) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            build,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{build}.{patch}")
    }
}

/// Symbols of the four numbers, in the order of [`Version`].
pub const NUMBERS: [&str; 4] = [
    "_ZN2v88internal7Version6major_E",
    "_ZN2v88internal7Version6minor_E",
    "_ZN2v88internal7Version6build_E",
    "_ZN2v88internal7Version6patch_E",
];

/// Text is searched in this much read-only data; official builds have it in the first MB.
const SEARCHED: u64 = 128 << 20;

/// `found` are symbols whose `wanted` counts from `base` in the order of [`NUMBERS`].
pub(super) fn v8(image: &Image, found: &[Symbol], base: usize) -> Result<Option<Version>> {
    let mut numbers = [None; 4];
    for (n, number) in numbers.iter_mut().enumerate() {
        let data = found
            .iter()
            .find(|s| s.wanted == base + n && s.kind == Kind::Data && s.suffix.is_empty());
        if let Some(symbol) = data {
            let bytes = image.bytes(symbol.offset, 4)?;
            *number = <[u8; 4]>::try_from(bytes).ok().map(u32::from_le_bytes);
        }
    }
    if let [Some(major), Some(minor), Some(build), Some(patch)] = numbers
        && (1..1000).contains(&major)
    {
        return Ok(Some(Version {
            major,
            minor,
            build,
            patch,
        }));
    }
    // Node's suffix marks V8's version text.
    image.find_constant(b"-node.", SEARCHED, |_, at| {
        let before = image.bytes(at.checked_sub(24)?, 24).ok()?;
        let text = String::from_utf8_lossy(&before);
        let start = text
            .rfind(|c: char| !c.is_ascii_digit() && c != '.')
            .map_or(0, |p| {
                p + text[p..].chars().next().map_or(0, char::len_utf8)
            });
        let text = &text[start..];
        (text.matches('.').count() == 3)
            .then(|| Version::parse(text))
            .flatten()
    })
}

pub(super) fn node(image: &Image) -> Result<Option<String>> {
    const BEFORE: &[u8] = b"/node-v";
    image.find_constant(BEFORE, SEARCHED, |bytes, _| {
        let rest = bytes.get(BEFORE.len()..)?;
        let len = rest
            .iter()
            .position(|b| !(b.is_ascii_alphanumeric() || b".-+".contains(b)))?;
        let text = std::str::from_utf8(&rest[..len]).ok()?;
        let version = text
            .strip_suffix("-headers.tar.gz")
            .or_else(|| text.strip_suffix(".tar.gz"))?;
        let numbers = version.split('-').next()?;
        let plain = numbers.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        (plain && numbers.matches('.').count() == 2).then(|| version.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_read_with_and_without_suffix() {
        let v = Version::parse("12.4.254.21-node.57").unwrap();
        assert_eq!(v.to_string(), "12.4.254.21");
        assert_eq!(Version::parse("12.4"), Version::parse("12.4.0.0"));
        assert!(v.at_least(12, 4) && v.at_least(11, 9) && !v.at_least(12, 5));
        for bad in ["", "12", "12.x", "v12.4", "12.4.5.99999999999"] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }
}
