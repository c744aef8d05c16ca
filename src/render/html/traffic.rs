//! What `peerproof measure` timed: the same tables as on a terminal, shaded by their numbers, with row, column and value told on
//! hover. What stands in them is `render::traffic`'s business.

use super::{
    super::{
        matrix::{Cell, Matrix},
        page::Tone,
        traffic::{self, Block},
    },
    Name, class, grid,
    markup::Markup,
    matrices::step,
};
use crate::model::report::Report;

pub(super) fn write(report: &Report, m: &mut Markup) {
    if report.traffic.is_empty() {
        return;
    }
    m.leaf("p", &[("class", "faint")], traffic::METHOD);
    let mut heading = String::new();
    let mut lines: Vec<(Tone, String)> = Vec::new();
    for block in traffic::told(report).0 {
        match block {
            Block::Heading(text) => {
                list(&mut lines, m);
                m.leaf("h3", &[], &text);
                heading = text;
            }
            Block::Table(matrix) => table(&heading, &matrix, m),
            Block::Line(tone, text) => lines.push((tone, text)),
        }
    }
    list(&mut lines, m);
}

fn list(lines: &mut Vec<(Tone, String)>, m: &mut Markup) {
    if lines.is_empty() {
        return;
    }
    m.element("ul", &[], |m| {
        for (tone, text) in lines.drain(..) {
            m.leaf("li", &[("class", class(tone))], &text);
        }
    });
}

fn number(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Value { number, .. } => *number,
        Cell::Diagonal | Cell::Missing => None,
    }
}

fn table(heading: &str, matrix: &Matrix, m: &mut Markup) {
    let numbers = matrix.rows.iter().flat_map(|(_, cells)| cells);
    let most = numbers.filter_map(number).fold(0.0, f64::max);
    let columns: Vec<&str> = [matrix.corner.as_str()]
        .into_iter()
        .chain(matrix.columns.iter().map(String::as_str))
        .collect();
    grid(m, "pairs", &Name::Heading(heading), &columns, |m| {
        for (label, cells) in &matrix.rows {
            m.element("tr", &[], |m| {
                m.leaf("th", &[("scope", "row")], label);
                for (at, column) in matrix.columns.iter().enumerate() {
                    one(cells.get(at), (label, column), most, matrix.even, m);
                }
            });
        }
    });
}

/// A cell. Only tables over pairs are shaded: in the others columns are different things.
fn one(
    cell: Option<&Cell>,
    (row, column): (&str, &str),
    most: f64,
    over_pairs: bool,
    m: &mut Markup,
) {
    let (shade, text) = match cell {
        Some(Cell::Diagonal) => ("none", "-".to_string()),
        Some(Cell::Missing) | None => ("none", "n/a".to_string()),
        Some(Cell::Value { text, tone, .. }) => {
            let judged = matches!(tone, Tone::Bad | Tone::Doubt);
            let value = cell.and_then(number).filter(|_| over_pairs && !judged);
            (
                value.map_or(class(*tone), |value| step(value, most)),
                text.clone(),
            )
        }
    };
    let to = if over_pairs { "->" } else { ", " };
    let more = format!("{row}{to}{column}: {text}");
    m.leaf("td", &[("class", shade), ("title", &more)], &text);
}
