//! Memory stays bounded on giants: a child process reads them and tells its peak.

use bessemer_web::warc::{FaultKind, WarcLimits, WarcReader};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::process::Command;

/// A file that is computed, not stored: pieces of bytes, and one byte many times.
struct Virtual {
    pieces: Vec<(Vec<u8>, u64)>,
    at: u64,
}

impl Virtual {
    fn length(&self) -> u64 {
        self.pieces.iter().map(|(b, times)| b.len() as u64 * times).sum()
    }
}

impl Read for Virtual {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut start = 0;
        for (bytes, times) in &self.pieces {
            let size = bytes.len() as u64 * times;
            if self.at < start + size {
                let inside = self.at - start;
                let count = out.len().min((start + size - self.at) as usize);
                if bytes.len() == 1 {
                    out[..count].fill(bytes[0]);
                } else {
                    for (i, o) in out[..count].iter_mut().enumerate() {
                        *o = bytes[((inside + i as u64) % bytes.len() as u64) as usize];
                    }
                }
                self.at += count as u64;
                return Ok(count);
            }
            start += size;
        }
        Ok(0)
    }
}

impl Seek for Virtual {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(n) => n,
            SeekFrom::End(n) => self.length().saturating_add_signed(n),
            SeekFrom::Current(n) => self.at.saturating_add_signed(n),
        };
        Ok(self.at)
    }
}

fn drain<R: Read + Seek>(inner: R) -> (Vec<String>, Vec<FaultKind>) {
    let mut reader = WarcReader::new(inner, WarcLimits::default()).unwrap();
    let (mut uris, mut faults) = (Vec::new(), Vec::new());
    loop {
        match reader.next() {
            Ok(Some(r)) => uris.push(r.target_uri().unwrap().to_string()),
            Ok(None) => return (uris, faults),
            Err(e) => faults.push(e.kind),
        }
    }
}

const GIB: u64 = 1 << 30;

fn record(uri: &str, length: u64) -> Vec<u8> {
    format!("WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: {uri}\r\nContent-Length: {length}\r\n\r\n")
        .into_bytes()
}

/// The work of the child; alone it only checks that the giants are passed over.
#[test]
#[ignore = "run by memory_is_bounded in a process of its own"]
fn read_giants() {
    let small = |uri| ([record(uri, 2), b"ok\r\n\r\n".to_vec()].concat(), 1);
    // A block of one line of a gigabyte, and a header line of a gigabyte.
    let file = Virtual {
        pieces: vec![
            small("a"),
            (record("b", GIB), 1),
            (b"x".to_vec(), GIB),
            (b"\r\n\r\n".to_vec(), 1),
            small("c"),
            (b"WARC/1.0\r\nA: ".to_vec(), 1),
            (b"y".to_vec(), GIB),
            (b"\r\n\r\n".to_vec(), 1),
            small("d"),
        ],
        at: 0,
    };
    let (uris, faults) = drain(file);
    assert_eq!(
        (uris.join(" ").as_str(), &faults[..]),
        ("a c d", &[FaultKind::TooLarge, FaultKind::Header][..])
    );

    // A frame of some KiB that gives a gigabyte, between two good ones.
    let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    bomb.write_all(&record("b", GIB)).unwrap();
    for _ in 0..1024 {
        bomb.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let frame = |uri| zstd::bulk::compress(&small(uri).0, 3).unwrap();
    let bytes = [frame("a"), bomb.finish().unwrap(), frame("c")].concat();
    let (uris, faults) = drain(Cursor::new(bytes));
    assert_eq!((uris.join(" ").as_str(), &faults[..]), ("a c", &[FaultKind::Bomb][..]));

    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    println!("peak {}", peak.trim().trim_end_matches("kB").trim());
}

#[test]
#[cfg(target_os = "linux")]
fn memory_is_bounded() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::read_giants", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let at = text.find("peak ").unwrap();
    let peak: u64 = text[at + 5..].split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < 48 << 10, "{peak} KiB for two files with gigabytes in a record");
}
