//! The geometry of every table over pairs: row = source, column = destination. A cell nobody measured (`n/a`) never
//! looks like zero, and the diagonal is not a measurement. A table that is too wide takes less room between columns,
//! then three-letter codes if its cells have them, then is printed in blocks of columns.

use super::page::{Page, Tone, pad};
use std::io;

/// One cell.
pub(super) enum Cell {
    /// Source and destination are one GPU.
    Diagonal,
    /// Nothing is known or was measured.
    Missing,
    /// A value, and a short code for narrow tables if it has one.
    Value {
        text: String,
        code: Option<&'static str>,
        tone: Tone,
        /// What it says, if that is a number which others of its table can be held against.
        number: Option<f64>,
    },
}

/// How a table was printed, so that a legend can explain what it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Words,
    Codes,
}

/// A table with a label for each row and column.
pub(super) struct Matrix {
    /// Text above the row labels.
    pub(super) corner: String,
    /// Column titles.
    pub(super) columns: Vec<String>,
    /// Row labels and cells; missing cells at the end of a row print as `n/a`.
    pub(super) rows: Vec<(String, Vec<Cell>)>,
    /// All columns as wide as the widest, where there is room.
    pub(super) even: bool,
    /// The diagonal's mark: `-`, or nvidia-smi's ` X `.
    pub(super) diagonal: &'static str,
}

impl Matrix {
    fn shown(&self, cell: Option<&Cell>, form: Form) -> (Tone, String) {
        match cell {
            Some(Cell::Diagonal) => (Tone::Faint, self.diagonal.to_string()),
            Some(Cell::Value {
                text, code, tone, ..
            }) => (
                *tone,
                match (form, code) {
                    (Form::Codes, Some(code)) => (*code).to_string(),
                    _ => text.clone(),
                },
            ),
            Some(Cell::Missing) | None => (Tone::Faint, "n/a".to_string()),
        }
    }

    fn widths(&self, form: Form) -> Vec<usize> {
        self.columns
            .iter()
            .enumerate()
            .map(|(at, title)| {
                self.rows
                    .iter()
                    .map(|(_, cells)| self.shown(cells.get(at), form).1.chars().count())
                    .chain([title.chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect()
    }

    /// Writes the table and says in which form.
    pub(super) fn write(&self, page: &mut Page<'_>) -> io::Result<Form> {
        let label = self
            .rows
            .iter()
            .map(|(label, _)| label.chars().count())
            .chain([self.corner.chars().count()])
            .max()
            .unwrap_or(0);
        let total = |widths: &[usize], gap: usize| -> usize {
            label + widths.iter().map(|w| w + gap).sum::<usize>()
        };
        let coded = self.rows.iter().any(|(_, cells)| {
            cells
                .iter()
                .any(|c| matches!(c, Cell::Value { code: Some(_), .. }))
        });
        let even = |widths: &[usize]| -> Vec<usize> {
            let widest = if self.even {
                widths.iter().copied().max()
            } else {
                None
            };
            widths.iter().map(|w| widest.unwrap_or(*w)).collect()
        };
        let (words, codes) = (self.widths(Form::Words), even(&self.widths(Form::Codes)));
        // From the best to read to the narrowest; the last one is taken in any case and printed in blocks.
        let mut ways = vec![
            (Form::Words, even(&words), 2),
            (Form::Words, even(&words), 1),
            (Form::Words, words.clone(), 2),
        ];
        if coded {
            ways.push((Form::Codes, codes.clone(), 2));
            ways.push((Form::Codes, codes, 1));
        } else {
            ways.push((Form::Words, words.clone(), 1));
            ways.push((Form::Words, words, 2));
        }
        let room = page.width();
        let fitting = ways.iter().position(|(_, w, gap)| total(w, *gap) <= room);
        let at = fitting.unwrap_or(ways.len() - 1);
        let (form, widths, gap) = ways.swap_remove(at);

        let mut start = 0;
        while start < widths.len() {
            let mut end = start;
            let mut used = label;
            while let Some(width) = widths.get(end) {
                if end > start && used + gap + width > room {
                    break;
                }
                used += gap + width;
                end += 1;
            }
            if start > 0 {
                page.blank()?;
            }
            self.block(page, start..end, label, &widths, form, gap)?;
            start = end;
        }
        Ok(form)
    }

    fn block(
        &self,
        page: &mut Page<'_>,
        columns: std::ops::Range<usize>,
        label: usize,
        widths: &[usize],
        form: Form,
        gap: usize,
    ) -> io::Result<()> {
        let space = " ".repeat(gap);
        let mut head = pad(&self.corner, label);
        for at in columns.clone() {
            let title = self.columns.get(at).map_or("", String::as_str);
            head.push_str(&space);
            head.push_str(&pad(title, widths.get(at).copied().unwrap_or(0)));
        }
        page.line(&[(Tone::Faint, &head)])?;
        for (name, cells) in &self.rows {
            let mut parts = vec![(Tone::Plain, pad(name, label))];
            for at in columns.clone() {
                let (tone, text) = self.shown(cells.get(at), form);
                parts.push((Tone::Plain, space.clone()));
                parts.push((tone, pad(&text, widths.get(at).copied().unwrap_or(0))));
            }
            let borrowed: Vec<(Tone, &str)> = parts.iter().map(|(t, s)| (*t, s.as_str())).collect();
            page.line(&borrowed)?;
        }
        Ok(())
    }
}
