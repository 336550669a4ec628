//! The stream that a person reads: its width, and whether it takes colour.
//!
//! Reports always write their colours; this stream drops them where they do not belong: on anything
//! but a terminal, with `NO_COLOR` set, or with `--no-color`.

use std::{
    io::{self, Write},
    os::fd::AsRawFd,
};

use anstream::{AutoStream, ColorChoice};

/// Where there is no terminal to ask: fits a CI log.
const NO_TERMINAL: usize = 140;

pub struct Human {
    out: AutoStream<Box<dyn Write>>,
    pub width: usize,
}

impl Human {
    #[must_use]
    pub fn stdout(no_color: bool) -> Self {
        let choice = AutoStream::choice(&io::stdout());
        Self::new(Box::new(io::stdout()), &io::stdout(), choice, no_color)
    }

    #[must_use]
    pub fn stderr(no_color: bool) -> Self {
        let choice = AutoStream::choice(&io::stderr());
        // Not buffered by itself: without this each piece of a line would be a write of its own.
        let out = io::LineWriter::new(io::stderr());
        Self::new(Box::new(out), &io::stderr(), choice, no_color)
    }

    fn new(out: Box<dyn Write>, to: &impl AsRawFd, choice: ColorChoice, no_color: bool) -> Self {
        let choice = if no_color { ColorChoice::Never } else { choice };
        let out = match choice {
            ColorChoice::Never => AutoStream::never(out),
            _ => AutoStream::always_ansi(out),
        };
        Self {
            out,
            width: columns(to).unwrap_or(NO_TERMINAL),
        }
    }
}

impl Write for Human {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn columns(to: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one winsize to the given address, which is one.
    let done = unsafe { libc::ioctl(to.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
