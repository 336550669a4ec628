//! The findings of `doctor` for the terminal: a row each, and below it what to do.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::{table::flow, text::clean};
use crate::kernel::{Check, Status};

/// How to print; the caller knows what it prints to.
#[derive(Clone, Copy, Debug)]
pub struct Checks {
    pub width: usize,
    pub color: bool,
}

const NAME: usize = 22;
const STATUS: usize = 6;

impl Checks {
    pub fn write(&self, title: &str, rows: &[Check], out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.styled(Style::new().bold(), &clean(title)))?;
        for row in rows {
            let color = match row.status {
                Status::Ok => AnsiColor::Green,
                Status::Warn => AnsiColor::Yellow,
                Status::Fail => AnsiColor::Red,
            };
            let status = format!("{:<STATUS$}", row.status.name());
            let status = self.styled(color.on_default(), &status);
            let found = self.wrapped(&clean(&row.found));
            writeln!(out, "  {:<NAME$}{status}{found}", row.name)?;
            if let Some(todo) = &row.todo {
                let todo = self.wrapped(&format!("→ {}", clean(todo)));
                writeln!(out, "  {:width$}{todo}", "", width = NAME + STATUS)?;
            }
        }
        Ok(())
    }

    fn styled(&self, style: Style, text: &str) -> String {
        match self.color {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// `text` broken at spaces, its later lines below its first.
    fn wrapped(&self, text: &str) -> String {
        let indent = 2 + NAME + STATUS;
        let room = self.width.saturating_sub(indent).max(30);
        let words = text.split(' ').map(str::to_owned);
        flow(words, " ", room).join(&format!("\n{:indent$}", ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let rows = [
            Check::ok("kernel", "6.18.44"),
            Check::fail(
                "bpf maps",
                "Operation not permitted (os error 1)",
                "run under sudo, or give CAP_BPF and CAP_PERFMON",
            ),
        ];
        let mut out = Vec::new();
        let checks = Checks {
            width: 64,
            color: false,
        };
        checks.write("this machine", &rows, &mut out).unwrap();
        let expected = "\
this machine
  kernel                ok    6.18.44
  bpf maps              fail  Operation not permitted (os error
                              1)
                              → run under sudo, or give CAP_BPF
                              and CAP_PERFMON
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
