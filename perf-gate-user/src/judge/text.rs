//! Numbers in reasons, as JavaScript writes them: the strings are a contract with tests written
//! in it.

/// `String(x)`.
#[must_use]
pub fn number(x: f64) -> String {
    ryu_js::Buffer::new().format(x).to_owned()
}

/// `x.toFixed(0)`.
#[must_use]
pub fn fixed0(x: f64) -> String {
    ryu_js::Buffer::new().format_to_fixed(x, 0).to_owned()
}

/// Bytes per operation: two decimals, more for what would read as nothing.
#[must_use]
pub fn per_op(x: f64) -> String {
    if x == 0.0 {
        "0".to_owned()
    } else if x.abs() >= 0.01 {
        format!("{x:.2}")
    } else {
        format!("{x:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_javascript_writes_them() {
        for (x, s, f) in [
            (0.0, "0", "0"),
            (2.5, "2.5", "3"),
            (0.1, "0.1", "0"),
            (64.4, "64.4", "64"),
            (-0.4, "-0.4", "-0"),
            (1e21, "1e+21", "1e+21"),
            (f64::INFINITY, "Infinity", "Infinity"),
        ] {
            assert_eq!(number(x), s);
            assert_eq!(fixed0(x), f, "{x}");
        }
    }

    #[test]
    fn small_rates_are_not_nothing() {
        assert_eq!(per_op(56.0), "56.00");
        assert_eq!(per_op(0.027_343_75), "0.03");
        assert_eq!(per_op(1.1e-5), "1.1e-5");
        assert_eq!(per_op(0.0), "0");
    }
}
