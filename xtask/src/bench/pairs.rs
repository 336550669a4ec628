//! Paired runs and the figures made of them.
//!
//! A round runs the program unobserved before each observed run, and pairs the two. The noise row comes
//! from the same unobserved runs: each against the one before it, which is further away in time than the
//! partners of a real pair are, so it rather overstates the noise.

use super::runner::{Program, Runner, Sample, Variant};
use crate::error::Result;

/// All pairs of one variant, unobserved first.
pub struct Paired {
    pub variant: Variant,
    pub pairs: Vec<(Sample, Sample)>,
}

pub struct Measured {
    pub plain: Vec<Sample>,
    pub variants: Vec<Paired>,
}

impl Measured {
    pub fn run(
        runner: &Runner,
        program: &Program,
        variants: &[Variant],
        rounds: u32,
    ) -> Result<Self> {
        // Pages, caches and the plan of the binary are warm for everybody.
        runner.run(program, Variant::Watched)?;
        let mut plain: Vec<Sample> = Vec::new();
        let mut paired: Vec<Paired> = variants
            .iter()
            .map(|&variant| Paired {
                variant,
                pairs: Vec::new(),
            })
            .collect();
        for _ in 0..rounds {
            for row in &mut paired {
                let before = runner.run(program, Variant::Plain)?;
                let observed = runner.run(program, row.variant)?;
                plain.push(before.clone());
                row.pairs.push((before, observed));
            }
        }
        Ok(Self {
            plain,
            variants: paired,
        })
    }

    /// Name, wall ratios and CPU ratios of the noise and of every variant.
    pub fn ratios(&self) -> Vec<(Variant, Vec<f64>, Vec<f64>)> {
        let noise = self.plain.windows(2).filter_map(|two| match two {
            [before, after] => Some((before, after)),
            _ => None,
        });
        let mut rows = vec![ratios(Variant::Plain, noise)];
        for row in &self.variants {
            let pairs = row.pairs.iter().map(|(before, after)| (before, after));
            rows.push(ratios(row.variant, pairs));
        }
        rows
    }
}

fn ratios<'a>(
    variant: Variant,
    pairs: impl Iterator<Item = (&'a Sample, &'a Sample)>,
) -> (Variant, Vec<f64>, Vec<f64>) {
    let (wall, cpu) = pairs
        .map(|(plain, other)| (other.wall_ms / plain.wall_ms, other.cpu_ms / plain.cpu_ms))
        .unzip();
    (variant, wall, cpu)
}

/// The middle of the values, if there are any.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// `median (min-max)`, or that nothing was measured, which is not zero.
pub fn spread(values: &[f64], digits: usize) -> String {
    let Some(median) = median(values) else {
        return "not measured".to_owned();
    };
    if values.len() == 1 {
        return format!("{median:.digits$}");
    }
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // A dash after a minus sign would read as another one.
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn spread_names_median_and_extremes() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0], 2), "2.50 (1.00 to 4.00)");
        assert_eq!(spread(&[1.0, -1.0, -2.0], 0), "-1 (-2 to 1)");
        assert_eq!(spread(&[1.0], 0), "1");
        assert_eq!(spread(&[], 0), "not measured");
    }
}
