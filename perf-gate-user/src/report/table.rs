//! Aligned tables for the terminal, without lines, numbers to the right.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table whose first column is text and whose others are figures.
pub struct Figures {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Figures {
    pub fn new(head: &[&'static str]) -> Self {
        Self {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Lines of at most `width` columns: what does not fit side by side is put below, each part
    /// with the first column in front. A single column is never broken.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let mut out = Vec::new();
        let mut from = 1;
        while from < self.head.len() {
            let mut to = self.head.len();
            let mut part = self.part(from, to);
            while to > from + 1 && part.iter().any(|l| l.chars().count() > width) {
                to -= 1;
                part = self.part(from, to);
            }
            out.append(&mut part);
            from = to;
        }
        out
    }

    fn part(&self, from: usize, to: usize) -> Vec<String> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let cut = |row: &[String]| -> Vec<String> {
            let figures = row.get(from..to.min(row.len())).unwrap_or_default();
            row.first().into_iter().chain(figures).cloned().collect()
        };
        let head: Vec<String> = self.head.iter().map(|h| (*h).to_owned()).collect();
        table.add_row(cut(&head));
        for row in &self.rows {
            table.add_row(cut(row));
        }
        for (n, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if n > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.lines().map(|l| l.trim_end().to_owned()).collect()
    }
}

/// Words joined by `between`, broken into lines of at most `width` where a piece ends.
pub fn flow(pieces: impl IntoIterator<Item = String>, between: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let length = |s: &str| s.chars().count();
        match lines.last_mut() {
            Some(last) if length(last) + length(between) + length(&piece) <= width => {
                last.push_str(between);
                last.push_str(&piece);
            }
            _ => lines.push(piece),
        }
    }
    lines
}
