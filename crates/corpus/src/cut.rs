//! Long texts as parts: a text above `corpus.clean.max_bytes` becomes the documents `id#1`, `id#2`, …, cut at borders of
//! paragraphs. The side of the split is that of the whole text: it is assigned before.
//!
//! A row's number leaves room for the part: the stage multiplies it by 2^20 and adds the number of the part, 0 for a text that
//! is whole. So (file, row) names one row and keeps the order of the source.

use crate::rule::{Kind, is_binary};
use arrow_array::builder::BinaryBuilder;
use arrow_array::{
    Array, ArrayRef, BinaryArray, RecordBatch, StringArray, UInt32Array, UInt64Array, new_null_array,
};
use arrow_schema::{DataType, Field};
use bessemer_dataflow::{FlatMap, Result, column, with_columns};
use bessemer_documents::{COMPONENT, EDITS};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Low bits of a row number that contain the index of the part of a cut document.
const PART_BITS: u32 = 20;
/// Name of the stage.
const NAME: &str = "cut";

/// Number in the file of the document that a row is a part of, or is.
pub(crate) fn document_number(row: u64) -> u64 {
    row >> PART_BITS
}

/// Name of the document that a row is a part of, or is.
pub(crate) fn whole_id(id: &str, row: u64) -> &str {
    match is_part(row) {
        true => id.rsplit_once('#').map_or(id, |(whole, _)| whole),
        false => id,
    }
}

/// Whether a row is a part of a longer text.
pub(crate) fn is_part(row: u64) -> bool {
    row & ((1 << PART_BITS) - 1) > 0
}

/// The stage.
pub(crate) struct Cut {
    /// Bytes of the longest part; none where nothing is cut.
    pub(crate) max_bytes: Option<usize>,
    /// Components whose documents are kept byte for byte.
    pub(crate) exempt: BTreeSet<String>,
}

impl Cut {
    /// Whether the text of a row is cut. Code is not: files of that size are written by programs, and the rule that recognises
    /// them looks at their first lines.
    fn is_cut(&self, text: &[u8], path: &str, component: Option<&str>) -> bool {
        self.max_bytes.is_some_and(|most| text.len() > most)
            && Kind::of_path(path) == Kind::Prose
            && is_binary(text).is_none()
            && !component.is_some_and(|component| self.exempt.contains(component))
    }
}

impl FlatMap for Cut {
    fn name(&self) -> &str {
        NAME
    }

    fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let rows: &UInt64Array = column(NAME, &batch, "row")?;
        let texts: &BinaryArray = column(NAME, &batch, "text")?;
        let (ids, paths): (&StringArray, &StringArray) =
            (column(NAME, &batch, "id")?, column(NAME, &batch, "path")?);
        let reasons: &StringArray = column(NAME, &batch, "reason")?;
        let components: Option<&StringArray> =
            batch.column_by_name(COMPONENT).map(|_| column(NAME, &batch, COMPONENT)).transpose()?;
        let is_cut = |row: usize| {
            let component = components.map(|components| components.value(row));
            reasons.is_null(row) && self.is_cut(texts.value(row), paths.value(row), component)
        };
        let number = |row: u64, part: usize| (row << PART_BITS) + part as u64;
        let field = |name: &str, kind: DataType| Field::new(name, kind, false);
        if !(0..batch.num_rows()).any(is_cut) {
            let rows: UInt64Array = rows.values().iter().map(|row| number(*row, 0)).collect();
            return with_columns(&batch, vec![(field("row", DataType::UInt64), Arc::new(rows))]);
        }
        // Row of the batch, number of the part or 0, and the part's bytes.
        let mut parts: Vec<(usize, usize, Range<usize>)> = Vec::with_capacity(batch.num_rows() + 8);
        for row in 0..batch.num_rows() {
            let text = texts.value(row);
            match self.max_bytes.filter(|_| is_cut(row)) {
                Some(most) => {
                    let ranges = cut(text, most).into_iter().enumerate();
                    parts.extend(ranges.map(|(index, range)| (row, index + 1, range)));
                }
                None => parts.push((row, 0, 0..text.len())),
            }
        }
        let taken: UInt32Array = parts.iter().map(|(row, ..)| *row as u32).collect();
        let mut cut_texts = BinaryBuilder::with_capacity(parts.len(), texts.value_data().len());
        parts.iter().for_each(|(row, _, range)| cut_texts.append_value(&texts.value(*row)[range.clone()]));
        let cut_texts: ArrayRef = Arc::new(cut_texts.finish());
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            // Not the whole text for each of its parts.
            if field.name() == "text" {
                Ok(cut_texts.clone())
            } else {
                arrow_select::take::take(column, &taken, None)
            }
        });
        let columns: Vec<ArrayRef> = columns.collect::<std::result::Result<_, _>>()?;
        let whole = RecordBatch::try_new(batch.schema(), columns)?;
        let bytes: &UInt64Array = column(NAME, &batch, "bytes")?;
        let numbers: UInt64Array =
            parts.iter().map(|(row, part, _)| number(rows.value(*row), *part)).collect();
        let names: StringArray = parts
            .iter()
            .map(|(row, part, _)| match part {
                0 => Some(ids.value(*row).to_string()),
                part => Some(format!("{}#{part}", ids.value(*row))),
            })
            .collect();
        let stored: UInt64Array = parts
            .iter()
            .map(|(row, _, range)| share(bytes.value(*row), range, texts.value(*row).len()))
            .collect();
        let mut changed: Vec<(Field, ArrayRef)> = vec![
            (field("row", DataType::UInt64), Arc::new(numbers)),
            (field("id", DataType::Utf8), Arc::new(names)),
            (field("bytes", DataType::UInt64), Arc::new(stored)),
        ];
        // What a source noted about the text counts once.
        if let Ok(index) = whole.schema().index_of(EDITS) {
            let edits = whole.column(index);
            let none = new_null_array(edits.data_type(), 1);
            let places: Vec<(usize, usize)> = parts
                .iter()
                .enumerate()
                .map(|(place, (_, part, _))| if *part > 1 { (1, 0) } else { (0, place) })
                .collect();
            let edits = arrow_select::interleave::interleave(&[edits.as_ref(), none.as_ref()], &places)?;
            changed.push((whole.schema().field(index).clone(), edits));
        }
        with_columns(&whole, changed)
    }
}

/// The share of `all` bytes that a part of a text of `length` bytes has; the shares of all parts add up to `all`.
fn share(all: u64, part: &Range<usize>, length: usize) -> u64 {
    let up_to = |place: usize| (u128::from(all) * place as u128 / length.max(1) as u128) as u64;
    up_to(part.end) - up_to(part.start)
}

/// Parts of a text, each of at most `most` bytes and none far smaller than the others. Together they are the text.
///
/// The border is, of those near the end of an equal share, the best kind that there is: of a paragraph, a line, a sentence, a
/// word, a character.
fn cut(text: &[u8], most: usize) -> Vec<Range<usize>> {
    let most = most.max(4);
    let (mut parts, mut start) = (Vec::new(), 0);
    while text.len() - start > most {
        let rest = text.len() - start;
        let share = rest / rest.div_ceil(most);
        let (low, high) = (start + (share / 2).max(1), (start + most).min(text.len() - share / 2));
        let wanted = (start + share).min(high);
        let near = |is_border: fn(&[u8], usize) -> bool| {
            let before = (low..=wanted).rev().find(|place| is_border(text, *place));
            let reach = before.map_or(high + 1, |place| (high + 1).min(wanted + (wanted - place)));
            (wanted + 1..reach).find(|place| is_border(text, *place)).or(before)
        };
        let kinds = [begins_paragraph, begins_line, begins_sentence, begins_word, begins_character];
        // Bytes that are no text at all are cut anywhere.
        let end = kinds.into_iter().find_map(near).unwrap_or(wanted);
        parts.push(start..end);
        start = end;
    }
    parts.push(start..text.len());
    parts
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Whether a line with text begins here.
fn begins_line(text: &[u8], at: usize) -> bool {
    text[at - 1] == b'\n' && text.get(at).is_some_and(|byte| !byte.is_ascii_whitespace())
}

/// Whether a line begins here and the one before it is blank.
fn begins_paragraph(text: &[u8], at: usize) -> bool {
    let before = || text[..at - 1].iter().rev().find(|byte| !is_blank(**byte));
    begins_line(text, at) && before() == Some(&b'\n')
}

fn begins_sentence(text: &[u8], at: usize) -> bool {
    const WIDE: [&str; 3] = ["。", "！", "？"];
    let before = &text[..at];
    let ends =
        begins_word(text, at) && before.trim_ascii_end().last().is_some_and(|byte| b".!?".contains(byte));
    ends || WIDE.iter().any(|mark| before.ends_with(mark.as_bytes()))
}

fn begins_word(text: &[u8], at: usize) -> bool {
    text[at - 1].is_ascii_whitespace() && text.get(at).is_some_and(|byte| !byte.is_ascii_whitespace())
}

fn begins_character(text: &[u8], at: usize) -> bool {
    text.get(at).is_none_or(|byte| byte & 0xc0 != 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_documents::{Origin, RowBuilder};
    use proptest::prelude::*;

    fn pieces(text: &str, most: usize) -> Vec<&str> {
        cut(text.as_bytes(), most).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn the_best_border_near_an_equal_share_is_taken() {
        assert_eq!(pieces("one\ntwo\n\nthree\nfour\n", 15), ["one\ntwo\n\n", "three\nfour\n"]);
        assert_eq!(pieces("a b c. d e f g", 9), ["a b c. ", "d e f g"]);
        assert_eq!(pieces("one two\nthree four", 12), ["one two\n", "three four"]);
        assert_eq!(pieces("ééééé", 6), ["éé", "ééé"]);
        assert_eq!(pieces("雨が降る。風が吹く。", 20), ["雨が降る。", "風が吹く。"]);
        assert_eq!(pieces("short", 5), ["short"]);
    }

    proptest! {
        #[test]
        fn parts_are_the_text_within_the_limit_and_of_like_size(
            text in "([a-z]{1,9}[ .]|é|雨|\n|\n \r\n|\n\n){0,300}",
            most in 8usize..200,
        ) {
            let parts = pieces(&text, most);
            prop_assert_eq!(parts.concat(), &text[..]);
            prop_assert!(parts.iter().all(|part| part.len() <= most));
            let least = parts.iter().map(|part| part.len()).min().unwrap_or(0);
            prop_assert!(parts.len() < 2 || least * 5 >= most.min(text.len()) - 4, "{least} of {most}");
        }

        #[test]
        fn any_bytes_are_cut_without_loss(bytes in prop::collection::vec(any::<u8>(), 0..400), most in 0usize..50) {
            let parts = cut(&bytes, most);
            let joined: Vec<u8> = parts.iter().flat_map(|range| bytes[range.clone()].to_vec()).collect();
            prop_assert_eq!(joined, bytes);
            prop_assert!(parts.iter().all(|range| range.len() <= most.max(4)));
        }
    }

    #[test]
    fn rows_become_parts_with_numbers_of_their_own() {
        let mut builder = RowBuilder::default();
        let book = "A paragraph of a book.\n\n".repeat(10);
        for (row, path, text) in
            [(3, "a.txt", "short"), (7, "b.txt", &book), (8, "c.rs", &book), (9, "d.txt", "\0\n\n")]
        {
            let id = format!("{path}#{row}");
            let origin = Origin { row, id: &id, path, bytes: 1000, wrong_length: true, ..Origin::default() };
            builder.push(&origin, text.as_bytes());
        }
        let stage = Cut { max_bytes: Some(100), exempt: BTreeSet::new() };
        let batch = stage.apply(builder.finish().unwrap()).unwrap();
        let ids: &StringArray = column(NAME, &batch, "id").unwrap();
        let ids: Vec<&str> = ids.iter().flatten().collect();
        assert_eq!(ids, ["a.txt#3", "b.txt#7#1", "b.txt#7#2", "b.txt#7#3", "c.rs#8", "d.txt#9"]);
        let rows: &UInt64Array = column(NAME, &batch, "row").unwrap();
        assert!(rows.values().windows(2).all(|pair| pair[0] < pair[1]));
        let documents: Vec<(u64, &str)> = rows
            .values()
            .iter()
            .zip(&ids)
            .map(|(row, id)| (document_number(*row), whole_id(id, *row)))
            .collect();
        assert_eq!(documents[..4], [(3, "a.txt#3"), (7, "b.txt#7"), (7, "b.txt#7"), (7, "b.txt#7")]);
        let bytes: &UInt64Array = column(NAME, &batch, "bytes").unwrap();
        assert_eq!(bytes.values().iter().sum::<u64>(), 4000);
        let edits = batch.column_by_name(EDITS).unwrap();
        assert_eq!(
            (0..6).map(|row| edits.is_valid(row)).collect::<Vec<_>>(),
            [true, true, false, false, true, true]
        );
    }
}
