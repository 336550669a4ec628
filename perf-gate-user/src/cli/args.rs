//! The command line: what can be said, and how it is refused.
//!
//! clap's own exit code for a usage error is 2, which here means *cannot vouch*; [`parse`] turns it
//! into 64. Budgets are checked while parsing, so that a bad one is found before anything starts.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::{
    judge::{self, Budgets},
    report::text,
};

/// Wrong usage.
pub const USAGE: u8 = 64;

/// What V8 did in a Node program, seen from outside.
#[derive(Debug, Parser)]
#[command(name = "perf-gate", bin_name = "perf-gate", version = version(), arg_required_else_help = true, subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command, watch every process of its tree, report what V8 did in them
    ///
    /// Exit codes: the command's own, or 128+n after signal n; 1 when a budget is not kept; 2 when
    /// the run cannot be vouched for (an unproven or blind lane that a budget needs, lost data, no
    /// permission, a record that could not be written); 126 or 127 when the command cannot be run
    /// or is not found; 64 for wrong usage.
    Watch(Watch),
    /// Say what works on this machine, and what to do about the rest
    ///
    /// Exit codes: 0 when watch works here, 2 when it does not, 66 when the given node binary is
    /// missing or malformed.
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub struct Watch {
    #[command(flatten)]
    pub output: Output,
    /// Run the command as root, not as the user who called sudo
    #[arg(long)]
    pub as_root: bool,
    /// Prove every lane anew, even where a proof for this node binary is at hand
    #[arg(long, conflicts_with = "no_prove")]
    pub prove: bool,
    /// Do not run the control: lanes without a proof at hand stay unproven
    #[arg(long)]
    pub no_prove: bool,
    /// Stop at the end of the command itself, without waiting for what it left running
    #[arg(long)]
    pub no_wait_tree: bool,
    // Without `allow_hyphen_values`: it would take a misspelt option for the command.
    /// The command to run and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
    // Last, or its heading would be the command's too.
    #[command(flatten)]
    pub limits: Limits,
}

#[derive(Debug, Args)]
pub struct Output {
    /// Write the machine-readable record there (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub ndjson: Option<PathBuf>,
    /// Write the verdict as JUnit XML there (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// No report, only errors
    #[arg(long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// No colours, as with NO_COLOR set
    #[arg(long)]
    pub no_color: bool,
    /// Show every lane, process and isolate, and the kernel side's log
    #[arg(long)]
    pub verbose: bool,
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Budgets, over the whole tree")]
pub struct Limits {
    /// Scavenges and minor mark-sweeps
    #[arg(long, value_name = "N", value_parser = judge::parse_count, allow_negative_numbers = true)]
    pub max_scavenges: Option<u64>,
    /// Mark-compacts and starts of incremental marking
    #[arg(long, value_name = "N", value_parser = judge::parse_count, allow_negative_numbers = true)]
    pub max_old_gen: Option<u64>,
    /// External memory (ArrayBuffers and the like) still live at the end, in KiB
    #[arg(long, value_name = "N", value_parser = judge::parse_limit, allow_negative_numbers = true)]
    pub max_external_kb: Option<f64>,
    /// Largest peak RSS of one process that runs V8, in KiB
    #[arg(long, value_name = "N", value_parser = judge::parse_limit, allow_negative_numbers = true)]
    pub max_rss_kb: Option<f64>,
    /// Longest single pause, in milliseconds
    #[arg(long, value_name = "X", value_parser = judge::parse_limit, allow_negative_numbers = true)]
    pub max_pause_ms: Option<f64>,
    /// Bytes allocated in V8's heaps by the isolates' own threads
    #[arg(long, value_name = "N", value_parser = judge::parse_count, allow_negative_numbers = true)]
    pub max_bytes: Option<u64>,
}

impl Limits {
    #[must_use]
    pub const fn budgets(&self) -> Budgets {
        Budgets {
            max_scavenges: self.max_scavenges,
            max_old_gen: self.max_old_gen,
            max_external_kb: self.max_external_kb,
            max_rss_kb: self.max_rss_kb,
            max_pause_ms: self.max_pause_ms,
            max_bytes: self.max_bytes,
        }
    }
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Also look at this node binary
    #[arg(long, value_name = "PATH")]
    pub node: Option<PathBuf>,
    /// Write the findings as JSON lines there (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub ndjson: Option<PathBuf>,
    /// No table, only the exit code
    #[arg(long)]
    pub quiet: bool,
    /// No colours, as with NO_COLOR set
    #[arg(long)]
    pub no_color: bool,
}

/// What there is to print instead of running, and the exit code.
#[derive(Debug)]
pub struct Refusal {
    error: clap::Error,
    pub code: u8,
}

impl Refusal {
    /// Prints help and version in full, to standard output; an error in one line, to standard error.
    pub fn print(&self) {
        // There is nowhere left to say that printing failed.
        let _ = match self.error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => self.error.print(),
            _ => writeln!(io::stderr(), "perf-gate: {}", self.line()),
        };
    }

    /// clap spreads an error, its hints and the usage over paragraphs; the first two are enough.
    fn line(&self) -> String {
        let text = self.error.render().to_string();
        let wanted = text
            .split("\n\n")
            .take_while(|p| !p.starts_with("Usage:") && !p.starts_with("For more information"));
        let joined = wanted.map(|paragraph| {
            // Of the hints, how to pass a misspelt option to the command is not what is needed.
            let lines = paragraph.lines().map(str::trim);
            let lines: Vec<_> = lines.filter(|l| !l.starts_with("tip: to pass")).collect();
            lines.join(" ")
        });
        let joined: Vec<_> = joined.filter(|p| !p.is_empty()).collect();
        let joined = joined.join("; ");
        let line = joined.strip_prefix("error: ").unwrap_or(&joined);
        text::clean(line).into_owned() + " (see --help)"
    }
}

/// Parses a whole command line, program name first.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Refusal> {
    let cli = Cli::try_parse_from(args).map_err(|error| Refusal {
        code: match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
            _ => USAGE,
        },
        error,
    })?;
    if let Command::Watch(watch) = &cli.command
        && let (Some(a), Some(b)) = (&watch.output.ndjson, &watch.output.junit)
        && a == b
    {
        let why = "--ndjson and --junit cannot share one file; give each its own";
        return Err(Refusal {
            error: Cli::command().error(ErrorKind::ArgumentConflict, why),
            code: USAGE,
        });
    }
    Ok(cli)
}

/// The version, and which kernel-side object is inside and who made it.
const fn version() -> &'static str {
    macro_rules! or_unknown {
        ($name:literal) => {
            match option_env!($name) {
                Some(value) => value,
                None => "unknown",
            }
        };
    }
    const PARTS: [&str; 5] = [
        env!("CARGO_PKG_VERSION"),
        "\neBPF object sha256 ",
        or_unknown!("PERF_GATE_OBJECT_SHA256"),
        "\nmade by ",
        or_unknown!("PERF_GATE_OBJECT_COMPILER"),
    ];
    const LENGTH: usize = {
        let (mut sum, mut n) = (0, 0);
        while n < PARTS.len() {
            sum += PARTS[n].len();
            n += 1;
        }
        sum
    };
    const BYTES: [u8; LENGTH] = {
        let (mut out, mut at, mut n) = ([0; LENGTH], 0, 0);
        while n < PARTS.len() {
            let part = PARTS[n].as_bytes();
            let mut i = 0;
            while i < part.len() {
                out[at] = part[i];
                (at, i) = (at + 1, i + 1);
            }
            n += 1;
        }
        out
    };
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => env!("CARGO_PKG_VERSION"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_parse(line: &str) -> Result<Cli, Refusal> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn watch(line: &str) -> Watch {
        match try_parse(line).unwrap().command {
            Command::Watch(watch) => watch,
            Command::Doctor(_) => panic!("not watch"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_with_and_without_dashes() {
        let with =
            watch("perf-gate watch --ndjson - --max-scavenges 3 -- node --expose-gc x.js --quiet");
        assert_eq!(with.command, ["node", "--expose-gc", "x.js", "--quiet"]);
        assert_eq!(with.limits.budgets().max_scavenges, Some(3));
        assert!(!with.output.quiet);
        let without = watch("perf-gate watch --quiet node -e 1 -- --max-rss-kb nan");
        assert_eq!(
            without.command,
            ["node", "-e", "1", "--", "--max-rss-kb", "nan"]
        );
        assert!(without.output.quiet && !without.limits.budgets().any());
    }

    #[test]
    fn wrong_usage_is_64_and_says_why() {
        for (line, says) in [
            ("perf-gate", "Usage"),
            ("perf-gate watch", "CMD"),
            ("perf-gate watch --", "CMD"),
            ("perf-gate wach -- node", "watch"),
            (
                "perf-gate watch --max-scavnges 3 -- node",
                "--max-scavenges",
            ),
            ("perf-gate watch --max-scavenges -3 -- node", "negative"),
            ("perf-gate watch --max-scavenges=-3 -- node", "negative"),
            (
                "perf-gate watch --max-scavenges 1.5 -- node",
                "whole number",
            ),
            (
                "perf-gate watch --max-rss-kb NaN -- node",
                "a limit is a number",
            ),
            ("perf-gate watch --max-rss-kb=-inf -- node", "negative"),
            ("perf-gate watch --max-pause-ms inf -- node", "finite"),
            ("perf-gate watch --max-pause-ms -- node", "value"),
            ("perf-gate watch --max-bytes=-5 -- node", "negative"),
            ("perf-gate watch --max-bytes 1.5 -- node", "whole number"),
            (
                "perf-gate watch --quiet --verbose -- node",
                "cannot be used with",
            ),
            (
                "perf-gate watch --ndjson - --junit - -- node",
                "cannot share",
            ),
            ("perf-gate doctor extra", "unexpected"),
        ] {
            let refusal = try_parse(line).expect_err(line);
            assert_eq!(refusal.code, 64, "{line}");
            if line != "perf-gate" {
                let text = refusal.line();
                assert!(
                    text.contains(says) && !text.contains('\n'),
                    "{line}: {text}"
                );
                eprintln!("{text}");
            }
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for line in [
            "perf-gate --help",
            "perf-gate help watch",
            "perf-gate watch --help",
            "perf-gate --version",
        ] {
            assert_eq!(try_parse(line).expect_err(line).code, 0, "{line}");
        }
        assert!(version().contains("eBPF object sha256"));
    }
}
