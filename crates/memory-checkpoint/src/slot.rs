//! A slot: one rank's state after one step, in a file of a file system that lies in memory (`/dev/shm`). It outlives its process.
//!
//! ```text
//! 0      header, 4096 bytes: "BSMRSLOT", version, state, run, launch, rank, ranks, layout, step, lengths, hash of what follows;
//!        its last 16 bytes are the hash of the others
//! 4096   data: the elements that the rank saves, f32, in the order of its slices
//! ..     notes: whatever else the caller has to know
//! ```
//! All numbers are little-endian; hashes are XXH3 of 128 bits. The hash of a copy is that of the hashes of its chunks of 1 MiB and of its notes, so that
//! several threads can copy and verify it. A writer makes the header WRITING, writes data and notes, and makes
//! the header COMPLETE: a process that is killed leaves a slot that is not complete. What must never happen: the only complete slot of
//! a rank is written to. So a rank has two, and a writer takes the one that does not hold the newer complete copy.
//!
//! Nothing is synced: the file is gone with the machine, and a killed process loses no write.

use crate::error::{At, MemoryError, Result};
use bessemer_durable::ConfinedDir;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

const MAGIC: &[u8; 8] = b"BSMRSLOT";
const VERSION: u32 = 2;
const HEADER: usize = 4096;
const HASHED: usize = HEADER - 16;
/// Space for notes, so that the memory of a slot is known before there are any.
pub const NOTES_ROOM: u64 = 1 << 20;
/// Bytes of a chunk of the data: what is copied, hashed and sent at a time. The last chunk has what is left.
pub const CHUNK: usize = 1 << 20;

const WRITING: u32 = 1;
const COMPLETE: u32 = 2;

/// Hash of parts that is the same in every build and on every machine: names of files and records are made of it.
pub fn stable_hash(parts: &[&[u8]]) -> u128 {
    let mut hasher = Xxh3::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.digest128()
}

/// What a slot holds. A slot of another key is as good as empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotKey {
    /// Identifies the run.
    pub run: u128,
    /// Number of the part: below the number of ranks, what that rank holds of its own state.
    pub part: u32,
    /// Parts of the job's state.
    pub parts: u32,
    /// Hash of the layout: which elements each part has.
    pub layout: u64,
    /// Bytes of the data.
    pub bytes: u64,
    /// Bytes reserved for notes, at most [`NOTES_ROOM`].
    pub notes: u64,
}

impl SlotKey {
    /// Bytes of memory that a slot takes.
    pub fn slot_bytes(&self) -> u64 {
        SlotKey::overhead(self.notes) + self.bytes
    }

    /// Bytes of a slot besides its data.
    pub fn overhead(notes: u64) -> u64 {
        HEADER as u64 + notes
    }

    /// Chunks of the data.
    pub fn chunks(&self) -> usize {
        self.bytes.div_ceil(CHUNK as u64) as usize
    }

    /// The bytes of a chunk in the data.
    pub fn chunk(&self, number: usize) -> Range<u64> {
        let start = number as u64 * CHUNK as u64;
        start..self.bytes.min(start + CHUNK as u64)
    }
}

/// Description of a complete copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompleteCopy {
    /// Optimizer steps done.
    pub step: u64,
    /// Number of the launch of the run that wrote it.
    pub launch: u64,
    /// Bytes of the notes.
    pub notes: u64,
    /// Hash of data and notes.
    pub hash: u128,
}

/// A slot of a key.
#[derive(Debug)]
pub struct Slot {
    file: File,
    path: PathBuf,
    key: SlotKey,
}

impl Slot {
    /// Opens the slot `name` of `dir` for reading and writing. It is made if it is missing, with all its memory reserved: a later write never finds
    /// the file system full.
    ///
    /// # Errors
    /// A file that is not this user's own regular one, too little space, or the system's answer.
    pub fn open_in(dir: &ConfinedDir, name: &str, key: SlotKey) -> Result<Slot> {
        let path = dir.path().join(name);
        let file = dir.open_or_create(name, 0o600).at("open", &path)?;
        let slot = Slot { file: own(file, &path)?, path, key };
        let path = &slot.path;
        // Of another layout: its end would stay in memory.
        if slot.file.metadata().at("open", path)?.len() > key.slot_bytes() {
            slot.file.set_len(key.slot_bytes()).at("shorten", path)?;
        }
        match fallocate(&slot.file, FallocateFlags::empty(), 0, key.slot_bytes()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(slot),
            Err(e) => Err(e).at("reserve memory for", path),
        }
    }

    /// Opens a slot that is there, for reading only.
    ///
    /// # Errors
    /// As [`Slot::open_in`].
    pub fn open_existing_in(dir: &ConfinedDir, name: &str, key: SlotKey) -> Result<Slot> {
        let path = dir.path().join(name);
        let file = dir.open_file(name).at("open", &path)?;
        Ok(Slot { file: own(file, &path)?, path, key })
    }

    #[cfg(test)]
    pub(crate) fn open(path: &Path, key: SlotKey) -> Result<Slot> {
        let (dir, name) = test_place(path);
        Slot::open_in(&dir, &name, key)
    }

    #[cfg(test)]
    pub(crate) fn open_existing(path: &Path, key: SlotKey) -> Result<Slot> {
        let (dir, name) = test_place(path);
        Slot::open_existing_in(&dir, &name, key)
    }

    /// The same file once more, for another thread.
    ///
    /// # Errors
    /// The system's.
    pub fn try_clone(&self) -> Result<Slot> {
        let file = self.file.try_clone().at("open", &self.path)?;
        Ok(Slot { file, path: self.path.clone(), key: self.key })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the file from all others of this machine: device and inode.
    ///
    /// # Errors
    /// The system's.
    pub fn file_number(&self) -> Result<[u64; 2]> {
        let found = self.file.metadata().at("look at", &self.path)?;
        Ok([found.dev(), found.ino()])
    }

    /// The key.
    pub fn key(&self) -> &SlotKey {
        &self.key
    }

    /// What the slot holds by its header; `None` if that is not complete, is damaged, or belongs to another key. [`Slot::verify`] checks the rest.
    pub fn complete(&self) -> Option<CompleteCopy> {
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, 0).ok()?;
        if header[HASHED..] != xxh3_128(&header[..HASHED]).to_le_bytes() {
            return None;
        }
        let word = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).unwrap_or(0);
        let long = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
        let huge = |at: usize| header[at..at + 16].try_into().map(u128::from_le_bytes).unwrap_or(0);
        let key = SlotKey {
            run: huge(16),
            part: word(32),
            parts: word(36),
            layout: long(40),
            bytes: long(48),
            ..self.key
        };
        let matches = &header[..8] == MAGIC && word(8) == VERSION && word(12) == COMPLETE;
        let copy = CompleteCopy { launch: long(56), step: long(64), notes: long(72), hash: huge(80) };
        (matches && key == self.key && copy.notes <= key.notes).then_some(copy)
    }

    fn write_header(&self, state: u32, copy: &CompleteCopy) -> Result<()> {
        let mut header = [0; HEADER];
        let key = &self.key;
        let fields: [(usize, &[u8]); 12] = [
            (0, MAGIC),
            (8, &VERSION.to_le_bytes()),
            (12, &state.to_le_bytes()),
            (16, &key.run.to_le_bytes()),
            (32, &key.part.to_le_bytes()),
            (36, &key.parts.to_le_bytes()),
            (40, &key.layout.to_le_bytes()),
            (48, &key.bytes.to_le_bytes()),
            (56, &copy.launch.to_le_bytes()),
            (64, &copy.step.to_le_bytes()),
            (72, &copy.notes.to_le_bytes()),
            (80, &copy.hash.to_le_bytes()),
        ];
        for (at, bytes) in fields {
            header[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let hash = xxh3_128(&header[..HASHED]).to_le_bytes();
        header[HASHED..].copy_from_slice(&hash);
        self.file.write_all_at(&header, 0).at("write", &self.path)
    }

    /// Begins a copy of the state after `step`. What the slot held is gone.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self, step: u64, launch: u64) -> Result<SlotWriter<'_>> {
        let copy = CompleteCopy { step, launch, notes: 0, hash: 0 };
        self.write_header(WRITING, &copy)?;
        let hashes = (0..self.key.chunks()).map(|_| OnceLock::new()).collect();
        Ok(SlotWriter { slot: self, copy, hashes })
    }

    /// Makes the slot hold nothing.
    ///
    /// # Errors
    /// The system's.
    pub fn clear(&self) -> Result<()> {
        self.file.write_all_at(&[0; HEADER], 0).at("write", &self.path)
    }

    /// Reads all bytes of a complete copy, on up to `threads` threads, and compares their hash with the one that was written.
    ///
    /// # Errors
    /// [`MemoryError::Damaged`]; the system's answer.
    pub fn verify(&self, copy: &CompleteCopy, threads: usize) -> Result<()> {
        let hashes: Vec<OnceLock<u128>> = (0..self.key.chunks()).map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let mut chunk = vec![0; CHUNK.min(self.key.bytes as usize)];
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(hash) = hashes.get(number) else { return Ok(()) };
                let bytes = self.key.chunk(number);
                let here = &mut chunk[..(bytes.end - bytes.start) as usize];
                self.read_at(here, bytes.start)?;
                hash.get_or_init(|| xxh3_128(here));
            }
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads.min(hashes.len())).map(|_| scope.spawn(work)).collect();
            let own = work();
            // A helper that panics has left a chunk without a hash, which is other bytes than were written.
            let others = helpers.into_iter().map(|helper| helper.join().unwrap_or(Ok(())));
            std::iter::once(own).chain(others).collect::<Result<Vec<()>>>()
        })?;
        let found = whole_hash(&hashes, &self.notes(copy)?);
        if found == Some(copy.hash) {
            return Ok(());
        }
        let (path, step, wanted, found) = (self.path.clone(), copy.step, copy.hash, found.unwrap_or(0));
        Err(MemoryError::Damaged { path, step, wanted, found })
    }

    /// Reads bytes of the data, and after them of the notes.
    ///
    /// # Errors
    /// The system's.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, HEADER as u64 + offset).at("read", &self.path)
    }

    /// Reads the notes of a complete copy.
    ///
    /// # Errors
    /// The system's.
    pub fn notes(&self, copy: &CompleteCopy) -> Result<Vec<u8>> {
        let mut notes = vec![0; copy.notes as usize];
        self.read_at(&mut notes, self.key.bytes)?;
        Ok(notes)
    }
}

/// Hash of a copy: that of the hashes of its chunks and of its notes. `None` if the hash of a chunk is missing.
fn whole_hash(chunks: &[OnceLock<u128>], notes: &[u8]) -> Option<u128> {
    let mut hasher = Xxh3::new();
    for hash in chunks {
        hasher.update(&hash.get()?.to_le_bytes());
    }
    hasher.update(&xxh3_128(notes).to_le_bytes());
    Some(hasher.digest128())
}

/// A copy that is being written. Dropped before [`SlotWriter::finish`], it leaves a slot that is not complete.
pub struct SlotWriter<'a> {
    slot: &'a Slot,
    copy: CompleteCopy,
    hashes: Vec<OnceLock<u128>>,
}

impl SlotWriter<'_> {
    /// Writes a chunk of the data. Chunks may be written by several threads and in any order, each once.
    ///
    /// # Errors
    /// Another number of bytes than the chunk has, a chunk that was written before; the system's answer.
    pub fn write_chunk(&self, number: usize, bytes: &[u8]) -> Result<()> {
        let Some(hash) = self.hashes.get(number) else {
            return self.wrong(&format!("chunk {number}, wanted one of {}", self.hashes.len()));
        };
        let chunk = self.slot.key.chunk(number);
        let wanted = chunk.end - chunk.start;
        if bytes.len() as u64 != wanted {
            return self.wrong(&format!("{} bytes of chunk {number}, wanted {wanted}", bytes.len()));
        }
        let written = self.slot.file.write_all_at(bytes, HEADER as u64 + chunk.start);
        written.at("write", &self.slot.path)?;
        match hash.set(xxh3_128(bytes)) {
            Ok(()) => Ok(()),
            Err(_) => self.wrong(&format!("chunk {number} twice")),
        }
    }

    fn wrong<T>(&self, text: &str) -> Result<T> {
        Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text)).at("write", &self.slot.path)
    }

    /// Writes the notes and makes the copy complete.
    ///
    /// # Errors
    /// A chunk that is missing, more notes than the key has space for; the system's answer.
    pub fn finish(self, notes: &[u8]) -> Result<CompleteCopy> {
        self.complete(notes, None)
    }

    /// [`SlotWriter::finish`] of a copy that another rank has made, whose hash is `wanted`.
    ///
    /// # Errors
    /// [`MemoryError::Damaged`] for other bytes: the slot is then not complete. Errors of [`SlotWriter::finish`].
    pub fn finish_as(self, notes: &[u8], wanted: u128) -> Result<CompleteCopy> {
        self.complete(notes, Some(wanted))
    }

    fn complete(self, notes: &[u8], wanted: Option<u128>) -> Result<CompleteCopy> {
        let most = self.slot.key.notes;
        if notes.len() as u64 > most {
            return self.wrong(&format!("{} bytes of notes, wanted at most {most}", notes.len()));
        }
        let Some(hash) = whole_hash(&self.hashes, notes) else {
            let missing = self.hashes.iter().filter(|hash| hash.get().is_none()).count();
            return self.wrong(&format!("a copy without {missing} of its {} chunks", self.hashes.len()));
        };
        let behind = HEADER as u64 + self.slot.key.bytes;
        self.slot.file.write_all_at(notes, behind).at("write", &self.slot.path)?;
        let copy = CompleteCopy { notes: notes.len() as u64, hash, ..self.copy };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != copy.hash) {
            let (path, step, found) = (self.slot.path.clone(), copy.step, copy.hash);
            return Err(MemoryError::Damaged { path, step, wanted, found });
        }
        self.slot.write_header(COMPLETE, &copy)?;
        Ok(copy)
    }
}

/// The two slots of a rank's state on one holder.
#[derive(Debug)]
pub struct SlotPair([Slot; 2]);

impl SlotPair {
    /// Two slots of one key.
    pub fn new(slots: [Slot; 2]) -> SlotPair {
        SlotPair(slots)
    }

    /// The slots.
    pub fn slots(&self) -> &[Slot; 2] {
        &self.0
    }

    /// The slot to write to next: one that is not complete, else the one with the older copy.
    pub fn next(&self) -> &Slot {
        let [a, b] = self.0.each_ref().map(|slot| slot.complete().map(|copy| (copy.launch, copy.step)));
        if b < a { &self.0[1] } else { &self.0[0] }
    }

    /// Makes copies of steps after `step` incomplete, because the run has gone back to it.
    ///
    /// # Errors
    /// The system's.
    pub fn forget_after(&self, step: u64) -> Result<()> {
        let later = |slot: &&Slot| slot.complete().is_some_and(|copy| copy.step > step);
        self.0.iter().filter(later).try_for_each(Slot::clear)
    }
}

#[cfg(test)]
fn test_place(path: &Path) -> (ConfinedDir, String) {
    let dir = ConfinedDir::open_named(path.parent().expect("a parent")).expect("a directory");
    (dir, path.file_name().expect("a name").to_string_lossy().into_owned())
}

/// Refuses a file that is not this user's own.
fn own(file: File, path: &Path) -> Result<File> {
    let found = file.metadata().at("open", path)?;
    let problem = match () {
        () if found.uid() != rustix::process::geteuid().as_raw() => {
            format!("it belongs to user {}", found.uid())
        }
        () if found.permissions().mode() & 0o077 != 0 => "other users may open it".to_owned(),
        () => return Ok(file),
    };
    Err(MemoryError::Foreign { path: path.into(), problem })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
mod tests {
    use super::*;

    const KEY: SlotKey = SlotKey { run: 7, part: 1, parts: 4, layout: 99, bytes: 3000, notes: NOTES_ROOM };

    fn data() -> Vec<u8> {
        (0..3000u32).map(|i| (i * 7 % 251) as u8).collect()
    }

    fn written(slot: &Slot, step: u64) -> CompleteCopy {
        let writer = slot.begin(step, 1).unwrap();
        writer.write_chunk(0, &data()).unwrap();
        writer.finish(b"notes").unwrap()
    }

    #[test]
    fn a_copy_is_complete_only_when_all_of_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        let slot = Slot::open(&path, KEY).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), KEY.slot_bytes());
        assert_eq!(slot.complete(), None);
        let writer = slot.begin(3, 1).unwrap();
        writer.write_chunk(0, &data()).unwrap();
        assert!(writer.write_chunk(0, &data()).is_err() && writer.write_chunk(1, b"x").is_err());
        assert!(writer.write_chunk(0, b"x").is_err());
        assert_eq!(slot.complete(), None, "killed before the end");
        assert!(slot.begin(3, 1).unwrap().finish(b"").is_err(), "data is missing");
        let copy = written(&slot, 4);
        // Another process.
        let again = Slot::open_existing(&path, KEY).unwrap();
        assert_eq!(again.complete(), Some(copy));
        again.verify(&copy, 1).unwrap();
        assert_eq!(again.notes(&copy).unwrap(), b"notes");
        let mut read = vec![0; 3000];
        again.read_at(&mut read, 0).unwrap();
        assert_eq!(read, data());
        for other in [SlotKey { run: 8, ..KEY }, SlotKey { part: 2, ..KEY }, SlotKey { layout: 1, ..KEY }] {
            assert_eq!(Slot::open_existing(&path, other).unwrap().complete(), None);
        }
        slot.clear().unwrap();
        assert_eq!(again.complete(), None);
    }

    /// Every bit of the header, the data and the notes.
    #[test]
    fn every_flipped_bit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slot");
        let slot = Slot::open(&path, KEY).unwrap();
        let copy = written(&slot, 4);
        for at in 0..(HEADER + 3000 + 5) as u64 {
            let mut byte = [0];
            slot.file.read_exact_at(&mut byte, at).unwrap();
            let bit = 1 << (at % 8);
            slot.file.write_all_at(&[byte[0] ^ bit], at).unwrap();
            let found = slot.complete().map(|copy| slot.verify(&copy, 1));
            assert!(!matches!(found, Some(Ok(()))), "bit {bit} of byte {at}");
            slot.file.write_all_at(&byte, at).unwrap();
        }
        slot.verify(&copy, 1).unwrap();
    }

    /// Chunks in any order by several threads, verified by any number of them; a flipped bit in any chunk is found by all.
    #[test]
    fn chunks_are_written_and_verified_by_several_threads() {
        let dir = tempfile::tempdir().unwrap();
        let key = SlotKey { bytes: 4 * CHUNK as u64 + 12, ..KEY };
        let slot = Slot::open(&dir.path().join("slot"), key).unwrap();
        let chunk = |number: usize| -> Vec<u8> {
            key.chunk(number).map(|i| (i * 11 % 253) as u8 ^ number as u8).collect()
        };
        assert_eq!((key.chunks(), chunk(4).len()), (5, 12));
        let writer = slot.begin(3, 1).unwrap();
        std::thread::scope(|scope| {
            for numbers in [[4, 1].as_slice(), &[3, 0, 2]] {
                let writer = &writer;
                scope.spawn(move || numbers.iter().for_each(|n| writer.write_chunk(*n, &chunk(*n)).unwrap()));
            }
        });
        let copy = writer.finish(b"notes").unwrap();
        for threads in [1, 2, 16] {
            slot.verify(&copy, threads).unwrap();
        }
        for number in 0..key.chunks() {
            let at = HEADER as u64 + key.chunk(number).start + 7;
            let byte = [chunk(number)[7]];
            slot.file.write_all_at(&[byte[0] ^ 8], at).unwrap();
            for threads in [1, 3] {
                assert!(matches!(slot.verify(&copy, threads), Err(MemoryError::Damaged { step: 3, .. })));
            }
            slot.file.write_all_at(&byte, at).unwrap();
        }
        slot.verify(&copy, 2).unwrap();
    }

    /// Slots of an older build have to be found.
    #[test]
    fn names_stay_the_same() {
        assert_eq!(stable_hash(&[]), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_ne!(stable_hash(&[b"ab", b"c"]), stable_hash(&[b"a", b"bc"]));
        assert_eq!(stable_hash(&[b"run", b"id"]), 40_014_347_772_341_447_013_381_901_893_748_727_581);
    }

    #[test]
    fn the_newest_complete_copy_is_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let slot = |name: &str| Slot::open(&dir.path().join(name), KEY).unwrap();
        let pair = SlotPair::new([slot("0"), slot("1")]);
        let steps = || pair.slots().each_ref().map(|slot| slot.complete().map(|copy| copy.step));
        written(pair.next(), 1);
        written(pair.next(), 2);
        assert_eq!(steps(), [Some(1), Some(2)]);
        let _ = pair.next().begin(3, 1).unwrap();
        assert_eq!(steps(), [None, Some(2)]);
        written(pair.next(), 3);
        assert_eq!(steps(), [Some(3), Some(2)]);
        pair.forget_after(2).unwrap();
        assert_eq!(steps(), [None, Some(2)]);
    }

    #[test]
    fn what_is_not_this_users_own_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("slot"), dir.path().join("link"));
        drop(Slot::open(&path, KEY).unwrap());
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Slot::open(&link, KEY).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let e = Slot::open(&path, KEY).unwrap_err().to_string();
        assert!(e.contains("other users may open it"), "{e}");
        assert!(Slot::open(Path::new("/dev/zero"), KEY).is_err());
    }

    #[test]
    fn a_full_file_system_is_refused_before_anything_is_copied() {
        let dir = tempfile::tempdir().unwrap();
        let e = Slot::open(&dir.path().join("slot"), SlotKey { bytes: 1 << 60, ..KEY }).unwrap_err();
        assert!(e.to_string().contains("cannot reserve memory for"), "{e}");
    }
}
