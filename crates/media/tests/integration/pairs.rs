//! Archives and folders to samples: every form of tar, and everything that a hostile one may try.

use bessemer_media::Limits;
use bessemer_media::pairs::{Entry, Event, TarReader, read};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

/// A header of 512 bytes with its checksum.
fn header(name: &str, kind: u8, size: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 512];
    b[..name.len().min(100)].copy_from_slice(&name.as_bytes()[..name.len().min(100)]);
    b[124..124 + size.len()].copy_from_slice(size);
    b[156] = kind;
    b[257..265].copy_from_slice(b"ustar\x0000");
    b[148..156].fill(b' ');
    let sum: u32 = b.iter().map(|&v| u32::from(v)).sum();
    b[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    b
}

fn file(name: &str, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = header(name, kind, format!("{:011o}\0", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut body = String::new();
    for (k, v) in records {
        let rest = k.len() + v.len() + 3;
        let mut length = rest + 1;
        while length.to_string().len() + rest != length {
            length += 1;
        }
        body.push_str(&format!("{length} {k}={v}\n"));
    }
    file("pax", b'x', body.as_bytes())
}

/// Names of files and refusals of an archive, and the error that ended it.
fn entries(archive: &[u8]) -> (Vec<String>, Option<String>) {
    let mut tar = TarReader::new(archive, 1000);
    let mut seen = Vec::new();
    loop {
        match tar.next_entry() {
            Ok(Some(Entry::File { path, bytes })) => seen.push(format!("{path}:{}", bytes.len())),
            Ok(Some(Entry::Refused { path, why })) => seen.push(format!("{path}!{}", why.name())),
            Ok(None) => return (seen, None),
            Err(e) => return (seen, Some(e.to_string())),
        }
    }
}

#[test]
fn every_form_of_name_and_size_is_read() {
    let long = "d/".repeat(80) + "long.txt";
    let mut prefixed = file("name.txt", b'0', b"abc");
    prefixed[345..351].copy_from_slice(b"prefix");
    prefixed[148..156].fill(b' ');
    let sum: u32 = prefixed[..512].iter().map(|&v| u32::from(v)).sum();
    prefixed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut binary = vec![0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let mut binary_size = header("binary.txt", b'0', &std::mem::take(&mut binary));
    binary_size.extend_from_slice(b"12345");
    binary_size.resize(1024, 0);
    let archive = [
        file("a.txt", b'0', b"hello"),
        file("folder", b'5', b""),
        file("./b//c.txt", 0, &[7; 513]),
        file("x", b'L', long.as_bytes()),
        file("short", b'0', b"1"),
        pax(&[("mtime", "1.5"), ("path", "pax/näme.txt")]),
        file("other", b'0', b"22"),
        prefixed,
        binary_size,
        vec![0; 1024],
        b"what follows the end is not read".to_vec(),
    ]
    .concat();
    let (seen, error) = entries(&archive);
    assert_eq!(error, None);
    let wanted = [
        "a.txt:5",
        "b/c.txt:513",
        &format!("{long}:1"),
        "pax/näme.txt:2",
        "prefix/name.txt:3",
        "binary.txt:5",
    ];
    assert_eq!(seen, wanted);
}

#[test]
fn what_is_hostile_is_refused_and_reading_goes_on() {
    let mut not_utf8 = file("x.txt", b'0', b"1");
    not_utf8[0] = 0xff;
    not_utf8[148..156].fill(b' ');
    let sum: u32 = not_utf8[..512].iter().map(|&v| u32::from(v)).sum();
    not_utf8[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let archive = [
        file("/etc/passwd", b'0', b"1"),
        file("a/../../b.txt", b'0', b"1"),
        file("..", b'0', b"1"),
        file("C:\\x.txt", b'0', b"1"),
        file("a\\..\\b.txt", b'0', b"1"),
        file("link.txt", b'2', b""),
        header("hard.txt", b'1', b"00000000777\0"),
        file("device", b'3', b""),
        file("fifo", b'6', b""),
        file("sparse.txt", b'S', &[1; 600]),
        pax(&[("GNU.sparse.major", "1")]),
        file("sparse-pax.txt", b'0', b"1"),
        file("huge.txt", b'0', &[1; 1001]),
        not_utf8,
        file("good.txt", b'0', b"fine"),
    ]
    .concat();
    let (seen, error) = entries(&archive);
    assert_eq!(error, None, "an archive may end without zeros");
    let wanted = [
        "/etc/passwd!absolute-path",
        "a/../../b.txt!climbing-path",
        "..!climbing-path",
        "C:\\x.txt!absolute-path",
        "a\\..\\b.txt!climbing-path",
        "link.txt!link",
        "hard.txt!link",
        "device!special-file",
        "fifo!special-file",
        "sparse.txt!sparse-file",
        "sparse-pax.txt!sparse-file",
        "huge.txt!too-large",
        "\u{fffd}.txt!bad-name",
        "good.txt:4",
    ];
    assert_eq!(seen, wanted);
}

#[test]
fn lying_headers_end_the_archive_with_a_message() {
    let good = file("a.txt", b'0', b"1");
    for (bad, what) in [
        (header("x.txt", b'0', b"77777777777\0"), "truncated"),
        (
            header("x.txt", b'0', &[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
            "impossible file length",
        ),
        (header("x.txt", b'0', &[0xff; 12]), "impossible file length"),
        (header("x.txt", b'0', b"9999\0"), "impossible file length"),
        (header("x", b'L', b"00077777777\0"), "too long"),
        (file("pax", b'x', b"99 path=a\n"), "damaged pax"),
        (file("pax", b'x', b"8 size=x\n"), "damaged pax"),
        (vec![7; 512], "checksum"),
        (vec![7; 100], "truncated"),
    ] {
        let (seen, error) = entries(&[good.clone(), bad].concat());
        assert_eq!(seen, ["a.txt:1"]);
        let error = error.unwrap();
        assert!(error.contains(what), "{error}");
    }
    let whole = [good.clone(), file("b.txt", b'0', &[1; 700]), vec![0; 1024]].concat();
    for cut in 0..whole.len() {
        let (seen, error) = entries(&whole[..cut]);
        assert!(
            seen.len() <= 2 && (error.is_some() || [0, 1024, 2560].contains(&cut) || cut >= 3072),
            "cut at {cut}"
        );
    }
}

fn events(path: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let done = read(path, &Limits::default(), |event| {
        seen.push(match event {
            Event::Sample(s) => {
                let members: Vec<String> =
                    s.members.iter().map(|(e, b)| format!("{e}={}", b.len())).collect();
                format!("{} {}", s.key, members.join(" "))
            }
            Event::Failed { key, reason, .. } => format!("{key} !{reason}"),
        });
        ControlFlow::Continue(())
    });
    if let Err(e) = done {
        seen.push(e.reason().into());
    }
    seen
}

#[test]
fn compressed_archives_and_folders_give_the_same_samples() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    std::fs::create_dir_all(folder.join("in")).unwrap();
    let files = [("a.jpg", 3), ("a.txt", 2), ("a-b.jpg", 4), ("in/c.d.txt", 1), ("in/c.png", 5)];
    let mut tar = Vec::new();
    for name in ["a-b.jpg", "a.jpg", "a.txt", "in/c.d.txt", "in/c.png"] {
        let n = files.iter().find(|f| f.0 == name).unwrap().1;
        std::fs::write(folder.join(name), vec![1; n]).unwrap();
        tar.extend(file(name, b'0', &vec![1; n]));
    }
    // A key sorts before its extension: a before a-b.
    let in_folder = ["a jpg=3 txt=2", "a-b jpg=4", "in/c d.txt=1 png=5"];
    assert_eq!(events(&folder), in_folder);
    let in_tar = ["a-b jpg=4", "a jpg=3 txt=2", "in/c d.txt=1 png=5"];
    let plain = dir.path().join("x.tar");
    std::fs::write(&plain, &tar).unwrap();
    assert_eq!(events(&plain), in_tar);
    // Two gzip members, cut in the middle of a block.
    let gzip = |bytes: &[u8]| {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(bytes).unwrap();
        e.finish().unwrap()
    };
    let both = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    std::fs::write(&plain, &both).unwrap();
    assert_eq!(events(&plain), in_tar);
    std::fs::write(&plain, &both[..both.len() - 20]).unwrap();
    assert_eq!(events(&plain).last().unwrap(), "archive");
    std::fs::write(&plain, zstd::encode_all(&tar[..], 3).unwrap()).unwrap();
    assert_eq!(events(&plain), in_tar);
    // 72 MiB of zeros in archives of some kilobytes: reading ends at 64 MiB, with the samples before that place.
    let bomb: Vec<u8> = (0..9).flat_map(|n| file(&format!("{n}.bin"), b'0', &vec![0; 8 << 20])).collect();
    let mut best = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    best.write_all(&bomb).unwrap();
    for packed in [best.finish().unwrap(), zstd::encode_all(&bomb[..], 3).unwrap()] {
        std::fs::write(&plain, packed).unwrap();
        let found = events(&plain);
        assert!(found.len() < 9 && found.last().unwrap() == "archive", "{found:?}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/passwd", folder.join("z.txt")).unwrap();
        assert!(events(&folder).contains(&"z.txt !link".to_string()));
    }
}
