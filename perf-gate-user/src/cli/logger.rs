//! Log lines of this program and of the kernel side, to standard error under `--verbose`.

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        // Libraries tell more than anybody wants to know.
        of.level() <= Level::Warn || of.target().starts_with("perf_gate")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str().to_lowercase();
        super::complain(format_args!("{level}: {}", record.args()));
    }

    fn flush(&self) {}
}

/// Without `verbose`, only warnings.
pub fn init(verbose: bool) {
    static LOGGER: Stderr = Stderr;
    let level = if verbose {
        LevelFilter::Debug
    } else {
        LevelFilter::Warn
    };
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(level);
    }
}
