//! Lists of buffers as CSV, the way MiniMalloc has them: a header with the columns id, lower, upper and
//! size in any order, one buffer a line. Other columns are left out, blank lines skipped. Knows nothing of
//! packing.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};

use aquifer::policies::pack::Buffer;
use csv::{ErrorKind, ReaderBuilder, StringRecord, Trim};

const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];

/// A list of buffers with their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Names, all different.
    pub ids: Vec<String>,
    /// As many buffers, each with `lower < upper`.
    pub buffers: Vec<Buffer>,
}

/// What is wrong with a list of buffers; lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowsError {
    /// There is nothing, or numbers where the header should be.
    NoHeader,
    /// The header does not name this column.
    NoColumn(&'static str),
    /// The header names this column more than once.
    TwoColumns(&'static str),
    /// A line has not as many cells as the header.
    Cells {
        /// Where.
        line: usize,
        /// Cells of that line.
        found: usize,
        /// Cells of the header.
        expected: usize,
    },
    /// A cell is no number from 0 to 2^64 - 1.
    Number {
        /// Where.
        line: usize,
        /// In which column.
        column: &'static str,
        /// What is there.
        cell: String,
    },
    /// A buffer ends no later than it begins.
    Lifetime {
        /// Where.
        line: usize,
        /// When it begins.
        lower: u64,
        /// When it ends.
        upper: u64,
    },
    /// An id is that of an earlier line.
    SameId {
        /// Where.
        line: usize,
        /// The earlier line.
        first: usize,
    },
    /// A line is no UTF-8 text.
    Text {
        /// Where.
        line: usize,
    },
}

impl fmt::Display for RowsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = COLUMNS.join(",");
        match self {
            RowsError::NoHeader => write!(f, "line 1: no header: begin with the line {all}"),
            RowsError::NoColumn(name) => {
                write!(f, "line 1: no column `{name}`: name the columns {all}, in any order")
            }
            RowsError::TwoColumns(name) => {
                write!(f, "line 1: two columns `{name}`: name each of {all} once")
            }
            RowsError::Cells { line, found, expected } => {
                write!(f, "line {line}: {found} cells, but the header has {expected}")
            }
            RowsError::Number { line, column, cell } => {
                let cell: String = cell.chars().take(40).collect();
                write!(f, "line {line}: {column} `{cell}` is not a whole number from 0 to 2^64 - 1")
            }
            RowsError::Lifetime { line, lower, upper } => {
                write!(f, "line {line}: lower {lower} is not below upper {upper}")
            }
            RowsError::SameId { line, first } => {
                write!(f, "line {line}: the id of line {first} again: give each buffer its own")
            }
            RowsError::Text { line } => write!(f, "line {line}: not UTF-8 text"),
        }
    }
}

impl Error for RowsError {}

/// Reads a list of buffers.
///
/// # Errors
///
/// The first thing that is wrong, with its line.
pub fn read(text: &[u8]) -> Result<Rows, RowsError> {
    let mut reader =
        ReaderBuilder::new().flexible(true).has_headers(false).trim(Trim::All).from_reader(text);
    let mut records =
        reader.records().map(|record| record.map_err(|error| wrong_text(text, &error)));
    let header = records.next().ok_or(RowsError::NoHeader)??;
    let columns = columns(&header)?;
    let mut rows = Rows::default();
    let mut begins: HashMap<String, usize> = HashMap::new();
    for record in records {
        let record = record?;
        let begin = record.position().map_or(0, |position| position.byte() as usize);
        let line = || line(text, begin);
        if record.len() != header.len() {
            let (found, expected) = (record.len(), header.len());
            return Err(RowsError::Cells { line: line(), found, expected });
        }
        let number = |column: usize| {
            let cell = &record[columns[column]];
            let wrong = |_| (COLUMNS[column], cell.to_string());
            let number = cell.parse::<u64>().map_err(wrong);
            number.map_err(|(column, cell)| RowsError::Number { line: line(), column, cell })
        };
        let (lower, upper, size) = (number(1)?, number(2)?, number(3)?);
        if lower >= upper {
            return Err(RowsError::Lifetime { line: line(), lower, upper });
        }
        let id = record[columns[0]].to_string();
        if let Some(first) = begins.insert(id.clone(), begin) {
            return Err(RowsError::SameId { line: line(), first: self::line(text, first) });
        }
        rows.ids.push(id);
        rows.buffers.push(Buffer { lower, upper, size });
    }
    Ok(rows)
}

/// Where the four columns are.
fn columns(header: &StringRecord) -> Result<[usize; 4], RowsError> {
    if header.iter().all(|cell| cell.parse::<f64>().is_ok()) {
        return Err(RowsError::NoHeader);
    }
    let mut columns = [0; 4];
    for (column, name) in columns.iter_mut().zip(COLUMNS) {
        let mut places = (0..header.len()).filter(|at| &header[*at] == name);
        *column = places.next().ok_or(RowsError::NoColumn(name))?;
        if places.next().is_some() {
            return Err(RowsError::TwoColumns(name));
        }
    }
    Ok(columns)
}

/// From memory and with any number of cells, text is all that can be wrong.
fn wrong_text(text: &[u8], error: &csv::Error) -> RowsError {
    let position = match error.kind() {
        ErrorKind::Utf8 { pos, .. } => pos.as_ref(),
        _ => error.position(),
    };
    RowsError::Text { line: line(text, position.map_or(0, |position| position.byte() as usize)) }
}

/// The line of the record that is read at `begin`: blank lines may come before it.
fn line(text: &[u8], begin: usize) -> usize {
    let begin = begin.min(text.len());
    let blank = text[begin..].iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
    1 + text[..begin + blank].iter().filter(|byte| **byte == b'\n').count()
}

/// Writes a list of buffers with an offset for each, in bytes: the same columns, and `offset`.
///
/// # Errors
///
/// The writer's.
///
/// # Panics
///
/// If there are not as many offsets as buffers.
pub fn write(rows: &Rows, offsets: &[u64], output: impl Write) -> io::Result<()> {
    assert_eq!(rows.buffers.len(), offsets.len(), "each buffer has an offset");
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(COLUMNS.iter().chain(&["offset"]))?;
    for ((id, buffer), offset) in rows.ids.iter().zip(&rows.buffers).zip(offsets) {
        let numbers = [buffer.lower, buffer.upper, buffer.size, *offset].map(|n| n.to_string());
        writer.write_record(std::iter::once(id).chain(&numbers))?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_in_any_order_with_others_between() {
        let text = "size,note,upper,id,lower\r\n8,\"a,b\",3, x ,1\r\n\r\n\r\n9,,5,y,4";
        let rows = read(text.as_bytes()).unwrap();
        assert_eq!(rows.ids, ["x", "y"]);
        let expected =
            [Buffer { lower: 1, upper: 3, size: 8 }, Buffer { lower: 4, upper: 5, size: 9 }];
        assert_eq!(rows.buffers, expected);
        assert_eq!(read(b"id,lower,upper,size\n"), Ok(Rows::default()));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let long = "9".repeat(30);
        let header = "id,lower,upper,size\n";
        for (text, part) in [
            ("", "line 1: no header: begin with the line id,lower,upper,size"),
            ("\n\n", "line 1: no header"),
            ("0,1,2,3\n", "line 1: no header"),
            ("id,lower,size\n", "line 1: no column `upper`"),
            ("id,lower,upper,size,id\n", "line 1: two columns `id`"),
            ("ID,lower,upper,size\n", "line 1: no column `id`"),
            (&format!("{header}a,1,2\n"), "line 2: 3 cells, but the header has 4"),
            (&format!("{header}a,1,2,3,4\n"), "line 2: 5 cells"),
            (
                &format!("{header}\n\na,1,2,3\r\n\r\nb,-1,2,3\n"),
                "line 6: lower `-1` is not a whole",
            ),
            (&format!("{header}a,1,2,0.5"), "line 2: size `0.5` is not"),
            (&format!("{header}a,1,{long},3"), "line 2: upper `9999999999"),
            (&format!("{header}a,1,2,\n"), "line 2: size `` is not"),
            (&format!("{header}a,2,2,1\n"), "line 2: lower 2 is not below upper 2"),
            (&format!("{header}a,3,2,1\n"), "line 2: lower 3 is not below upper 2"),
            (&format!("{header}\na,1,2,1\nb,1,2,1\n\na,1,2,1\n"), "line 6: the id of line 3 again"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(part), "{text:?}: {error}");
        }
        let text = [header.as_bytes(), b"a,1,2,3\n\xff,1,2,3\n"].concat();
        assert_eq!(read(&text), Err(RowsError::Text { line: 3 }));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let rows =
            read(b"id,lower,upper,size\n\"a,\"\"b\",0,18446744073709551615,7\n,1,2,0\n").unwrap();
        let mut text = Vec::new();
        write(&rows, &[5, 6], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with(
                "id,lower,upper,size,offset\n\"a,\"\"b\",0,18446744073709551615,7,5\n"
            )
        );
        assert_eq!(read(text.as_bytes()), Ok(rows));
    }
}
