//! The one door through which a budget's value comes in.

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LimitError {
    #[error("a limit is a number such as 0, 12 or 1.5")]
    NotANumber,
    #[error("a limit is finite; leave the option out for no limit")]
    NotFinite,
    #[error("a limit cannot be negative")]
    Negative,
    #[error("this limit counts whole things; give a whole number such as 0 or 12")]
    NotWhole,
}

/// A finite limit of at least 0.
pub fn parse_limit(text: &str) -> Result<f64, LimitError> {
    let value: f64 = text.trim().parse().map_err(|_| LimitError::NotANumber)?;
    if value.is_nan() {
        return Err(LimitError::NotANumber);
    }
    if value < 0.0 {
        return Err(LimitError::Negative);
    }
    if value.is_infinite() {
        return Err(LimitError::NotFinite);
    }
    // So that "-0" reads as 0 wherever it is printed.
    Ok(value.abs())
}

/// A limit on a count.
pub fn parse_count(text: &str) -> Result<u64, LimitError> {
    if let Ok(count) = text.trim().parse() {
        return Ok(count);
    }
    let value = parse_limit(text)?;
    // From here on f64 has gaps between whole numbers.
    if value.fract() != 0.0 || value >= (1u64 << 53) as f64 {
        return Err(LimitError::NotWhole);
    }
    Ok(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(parse_limit("12"), Ok(12.0));
        assert_eq!(parse_limit(" 1.5 "), Ok(1.5));
        assert_eq!(parse_limit("-0"), Ok(0.0));
        for (text, error) in [
            ("", LimitError::NotANumber),
            ("ten", LimitError::NotANumber),
            ("1,5", LimitError::NotANumber),
            ("12kb", LimitError::NotANumber),
            ("NaN", LimitError::NotANumber),
            ("-nan", LimitError::NotANumber),
            ("inf", LimitError::NotFinite),
            ("1e999", LimitError::NotFinite),
            ("-1", LimitError::Negative),
            ("-inf", LimitError::Negative),
        ] {
            assert_eq!(parse_limit(text), Err(error), "{text}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(parse_count("0"), Ok(0));
        assert_eq!(parse_count("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_count("1e3"), Ok(1000));
        assert_eq!(parse_count("2.5"), Err(LimitError::NotWhole));
        assert_eq!(
            parse_count("18446744073709551616"),
            Err(LimitError::NotWhole)
        );
        assert_eq!(parse_count("-3"), Err(LimitError::Negative));
    }
}
