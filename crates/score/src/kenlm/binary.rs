//! The binaries of KenLM, format version 5: header, vocabulary, n-grams, words.

use super::arpa::MULTIPLIER;
use super::table::{Probing, Table, slots_for};
use super::trie::{Kind, Trie};
use super::vocabulary::{BEGIN, END, Vocabulary, hash_word};
use super::{LanguageModel, MAX_ORDER, Search};
use crate::error::Result;
use crate::source::Source;
use std::io::{self, Read, Write};

/// Text and test numbers that every file begins with.
fn sanity() -> Vec<u8> {
    let mut bytes = b"mmap lm http://kheafield.com/code format version 5\n".to_vec();
    bytes.resize(56, 0);
    for value in [0.0f32, 1.0, -0.5] {
        bytes.extend(value.to_le_bytes());
    }
    for value in [1u32, u32::MAX, 0] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(1u64.to_le_bytes());
    bytes
}

struct Header {
    multiplier: f32,
    kind: i32,
    has_words: bool,
    counts: Vec<u64>,
}

fn read_header<R: Read>(source: &mut Source<R>) -> Result<Header> {
    let wanted = sanity();
    let found = source.bytes(wanted.len() as u64, "the header of a KenLM binary")?;
    if found != wanted {
        return Err(source.error(
            "this is not a KenLM binary of format version 5 from a 64-bit little-endian machine, or it is \
             incomplete; build it again from the ARPA file",
        ));
    }
    let order = source.u8("the order")? as usize;
    source.bytes(3, "padding")?;
    let multiplier = source.f32("the probing multiplier")?;
    let kind = source.i32("the kind of model")?;
    let has_words = source.boolean("the flag of the words")?;
    source.bytes(3, "padding")?;
    let version = source.u32("the version of the search")?;
    if !(2..=MAX_ORDER).contains(&order) {
        return Err(source.error(format!("order {order}; 2 to {MAX_ORDER} are read")));
    }
    if !(1.0..=1000.0).contains(&multiplier) {
        return Err(source.error(format!("probing multiplier {multiplier}, wanted at least 1")));
    }
    let known = match kind {
        0 => version == 0,
        2..=5 => version == 1,
        1 => {
            return Err(
                source.error("models with rest costs are not read; build with `build_binary probing`")
            );
        }
        _ => false,
    };
    if !known {
        return Err(source.error(format!("kind of model {kind} with search version {version} is unknown")));
    }
    let mut counts = Vec::with_capacity(order);
    for n in 1..=order {
        let count = source.u64("a count of n-grams")?;
        // No kind of model keeps an n-gram in less than two bits.
        if count > source.remaining().saturating_mul(4) {
            return Err(source.error(format!("{count} {n}-grams do not fit the file")));
        }
        counts.push(count);
    }
    let padding = source.at().wrapping_neg() % 8;
    source.bytes(padding, "padding")?;
    Ok(Header { multiplier, kind, has_words, counts })
}

pub(crate) fn read<R: Read>(mut source: Source<R>) -> Result<LanguageModel> {
    let header = read_header(&mut source)?;
    let (vocabulary, search, words) = if header.kind == 0 {
        let (map, bound) = read_probing_vocabulary(&mut source, &header)?;
        let probing = read_probing(&mut source, &header, bound)?;
        let words =
            if header.has_words { source.bytes(source.remaining(), "the words")? } else { Vec::new() };
        (map, Search::Probing(probing), words)
    } else {
        let vocabulary = read_sorted_vocabulary(&mut source, header.counts[0])?;
        let kind = Kind { quantised: header.kind % 2 == 1, array: header.kind >= 4 };
        (vocabulary, Search::Trie(Trie::read(&mut source, &header.counts, kind)?), Vec::new())
    };
    let (begin, end) = (vocabulary.id(BEGIN.as_bytes()), vocabulary.id(END.as_bytes()));
    if begin == 0 || end == 0 {
        return Err(
            source.error(format!("the model has no {BEGIN} or no {END}, so sentences cannot be scored"))
        );
    }
    Ok(LanguageModel { order: header.counts.len(), vocabulary, search, begin, end, words })
}

fn read_probing_vocabulary<R: Read>(source: &mut Source<R>, header: &Header) -> Result<(Vocabulary, u32)> {
    let version = source.u32("the version of the vocabulary")?;
    let bound = source.u32("the number of words")?;
    if version != 0 || bound as u64 > header.counts[0] + 1 {
        return Err(
            source.error(format!("vocabulary version {version} with {bound} of {} words", header.counts[0]))
        );
    }
    let slots = slots_for(header.counts[0], header.multiplier);
    source.need(slots.saturating_mul(12), "the vocabulary")?;
    let mut map = std::collections::HashMap::default();
    map.reserve(bound as usize);
    for _ in 0..slots {
        let (hash, id) = (source.u64("a word")?, source.u32("a word id")?);
        if hash == 0 {
            continue;
        }
        if id >= bound.max(1) {
            return Err(source.error(format!("a word has id {id} of {bound}")));
        }
        map.insert(hash, id);
    }
    Ok((Vocabulary::Map(map), bound))
}

fn read_sorted_vocabulary<R: Read>(source: &mut Source<R>, count: u64) -> Result<Vocabulary> {
    let used = source.u64("the number of words")?;
    source.need(count.saturating_mul(8), "the vocabulary")?;
    if used > count {
        return Err(source.error(format!("the vocabulary has {used} of {count} words")));
    }
    let mut hashes = Vec::with_capacity(count as usize);
    for _ in 0..count {
        hashes.push(source.u64("a word")?);
    }
    // The unknown word is counted and has no hash.
    hashes.truncate(used as usize);
    if used >= count || hashes.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(source.error("the words of the vocabulary are not sorted"));
    }
    Ok(Vocabulary::Sorted(hashes))
}

fn read_probing<R: Read>(source: &mut Source<R>, header: &Header, bound: u32) -> Result<Probing> {
    let order = header.counts.len();
    let slots: Vec<u64> = header.counts.iter().map(|&c| slots_for(c, header.multiplier)).collect();
    let mut bytes = (header.counts[0] + 1).saturating_mul(8);
    for (n, &slots) in slots.iter().enumerate().skip(1) {
        bytes = bytes.saturating_add(slots.saturating_mul(if n + 1 == order { 12 } else { 16 }));
    }
    source.need(bytes, "the n-grams")?;
    let mut probing = Probing::default();
    for id in 0..=header.counts[0] {
        let (log10, backoff) = (source.f32("a unigram")?, source.f32("a unigram")?);
        if !log10.is_finite() || !backoff.is_finite() {
            return Err(source.error(format!("unigram {id} has weights {log10} and {backoff}")));
        }
        // One more is written than there may be words.
        if id < (bound.max(1)) as u64 {
            probing.unigrams.push([log10, backoff]);
        }
    }
    for &slots in &slots[1..order - 1] {
        probing.middle.push(read_table(source, slots)?);
    }
    probing.longest = read_table(source, slots[order - 1])?;
    Ok(probing)
}

fn read_table<R: Read, const W: usize>(source: &mut Source<R>, slots: u64) -> Result<Table<W>> {
    let mut table = Table { slots: Vec::with_capacity(slots as usize), entries: 0 };
    let mut block = vec![0u8; (4 * W) << 10];
    let mut left = slots as usize;
    while left > 0 {
        let now = left.min(1 << 10);
        source.fill(&mut block[..now * 4 * W], "a table of n-grams")?;
        for bytes in block[..now * 4 * W].chunks_exact(4 * W) {
            let mut slot = [0u32; W];
            for (word, four) in slot.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes(four.try_into().expect("four bytes"));
            }
            if slot[0] != 0 || slot[1] != 0 {
                table.entries += 1;
                if slot[2..].iter().any(|&w| !f32::from_bits(w).is_finite()) {
                    return Err(source.error("an n-gram has a weight that is not a finite number"));
                }
            }
            table.slots.push(slot);
        }
        left -= now;
    }
    if table.entries >= slots {
        return Err(source.error("a table of n-grams has no free slot"));
    }
    Ok(table)
}

pub(crate) fn write(model: &LanguageModel, to: &mut impl Write) -> io::Result<()> {
    let (Search::Probing(probing), Vocabulary::Map(map)) = (&model.search, &model.vocabulary) else {
        return Err(io::Error::other(
            "a model from a KenLM trie cannot be written; start from its ARPA file",
        ));
    };
    let words: Vec<&[u8]> = model.words.split_inclusive(|&byte| byte == 0).collect();
    if words.len() != probing.unigrams.len() {
        return Err(io::Error::other(
            "the file of this model did not keep its words; start from its ARPA file",
        ));
    }
    let mut counts = vec![words.len() as u64];
    counts.extend(probing.middle.iter().map(|t| t.entries));
    counts.push(probing.longest.entries);
    let mut head = sanity();
    head.extend([counts.len() as u8, 0, 0, 0]);
    head.extend(MULTIPLIER.to_le_bytes());
    head.extend(0i32.to_le_bytes());
    head.extend([1, 0, 0, 0]);
    head.extend(0u32.to_le_bytes());
    for count in &counts {
        head.extend(count.to_le_bytes());
    }
    head.resize(head.len().next_multiple_of(8), 0);
    head.extend(0u32.to_le_bytes());
    head.extend((words.len() as u32).to_le_bytes());
    to.write_all(&head)?;

    let slots = slots_for(counts[0], MULTIPLIER);
    let mut vocabulary = Table::<3> { slots: vec![[0; 3]; slots as usize], entries: 0 };
    for (id, word) in words.iter().enumerate().skip(1) {
        let hash = hash_word(&word[..word.len() - 1]);
        debug_assert_eq!(map.get(&hash), Some(&(id as u32)));
        vocabulary.insert(hash, &[id as u32]);
    }
    write_slots(&vocabulary.slots, to)?;
    for unigram in &probing.unigrams {
        write_slots(&[[unigram[0].to_bits(), unigram[1].to_bits()]], to)?;
    }
    write_slots(&[[0u32; 2]], to)?;
    for (table, &count) in probing.middle.iter().zip(&counts[1..]) {
        write_table(table, count, to)?;
    }
    write_table(&probing.longest, probing.longest.entries, to)?;
    to.write_all(&model.words)
}

/// A table in the size that its count of entries promises to the reader.
fn write_table<const W: usize>(table: &Table<W>, count: u64, to: &mut impl Write) -> io::Result<()> {
    let slots = slots_for(count, MULTIPLIER);
    if table.slots.len() as u64 == slots {
        return write_slots(&table.slots, to);
    }
    let mut sized = Table::<W> { slots: vec![[0; W]; slots as usize], entries: 0 };
    for slot in table.slots.iter().filter(|slot| slot[0] != 0 || slot[1] != 0) {
        sized.insert(slot[0] as u64 | (slot[1] as u64) << 32, &slot[2..]);
    }
    write_slots(&sized.slots, to)
}

fn write_slots<const W: usize>(slots: &[[u32; W]], to: &mut impl Write) -> io::Result<()> {
    let mut block = Vec::with_capacity(1 << 14);
    for slots in slots.chunks(1 << 10) {
        block.clear();
        block.extend(slots.iter().flatten().flat_map(|word| word.to_le_bytes()));
        to.write_all(&block)?;
    }
    Ok(())
}
