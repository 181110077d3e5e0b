//! Rows of text in aligned columns. Does not know what they say.

use std::fmt;

/// A table: a head and rows of as many cells. The first columns are flush left, the others, which
/// hold numbers, flush right.
pub(crate) struct Table {
    left_columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(left_columns: usize, head: &[&str]) -> Table {
        let head = head.iter().map(|cell| cell.to_string()).collect();
        Table { left_columns, rows: vec![head] }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.rows[0].len(), "a row has the head's columns");
        self.rows.push(row);
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len()).map(|column| self.width(column)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += &match column < self.left_columns {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(1, &["trace", "ops"]);
        table.push(vec!["é".into(), "12345".into()]);
        table.push(vec!["longer name".into(), "7".into()]);
        let expected = "trace          ops\né            12345\nlonger name      7\n";
        assert_eq!(table.to_string(), expected);
    }
}
