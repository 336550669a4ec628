//! Words and numbers for people: units, thousands, and nothing that could steer a terminal.

use std::borrow::Cow;

/// `text` with control characters written out: paths, arguments and V8's words end up on a terminal,
/// which must not obey them.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.chars().any(unprintable) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().flat_map(|c| {
        let (plain, escape) = match unprintable(c) {
            true => (None, Some(c.escape_default())),
            false => (Some(c), None),
        };
        plain.into_iter().chain(escape.into_iter().flatten())
    });
    Cow::Owned(escaped.collect())
}

/// Control characters, and the marks that reorder text.
fn unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first `most` characters of `text`, marked when something is missing.
#[must_use]
pub fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    head + "…"
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number and its noun.
#[must_use]
pub fn plural(n: u64, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", count(n))
}

/// Bytes in the largest unit that keeps a digit before the point; exact below 1 KiB.
#[must_use]
pub fn bytes(n: i64) -> String {
    let size = n.unsigned_abs() as f64;
    let (unit, name) = match n.unsigned_abs() {
        0..0x400 => return format!("{n} B"),
        0x400..0x10_0000 => (1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (1_048_576.0, "MiB"),
        _ => (1_073_741_824.0, "GiB"),
    };
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{:.1} {name}", size / unit)
}

/// As [`bytes`], for figures that are unsigned in the model.
#[must_use]
pub fn size(n: u64) -> String {
    bytes(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Nanoseconds as microseconds, milliseconds or seconds with three digits or more.
#[must_use]
pub fn time(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(-2048), "-2.0 KiB");
        assert_eq!(bytes(i64::MIN), "-8589934592.0 GiB");
        assert_eq!(size(u64::MAX), "8589934592.0 GiB");
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(1_500), "1.5 µs");
        assert_eq!(time(2_345_678), "2.35 ms");
        assert_eq!(time(61_000_000_000), "61.000 s");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(clean("plain ünïcode"), "plain ünïcode");
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}"), "a\\u{1b}[2Jb\\nc\\u{202e}");
        assert_eq!(shorten("abcdef", 4), "abc…");
        assert_eq!(shorten("äöü", 3), "äöü");
    }
}
