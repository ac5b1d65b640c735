//! Checkpoints in other files: the same bits.

use crate::damage::{files_of, save};
use bessemer_checkpoint::{CheckpointDifference, ReshardRequest, Store, TensorSlice};
use bessemer_mesh::BoxRange;

#[test]
fn any_number_of_files_holds_the_same_bits_and_leads_back_to_the_first_ones() {
    let place = tempfile::tempdir().unwrap();
    let first = Store::open(place.path().join("first"));
    save(&first, 7, 11);
    let begun = first.load(7).unwrap();
    let specs = begun.specs();
    let mut from = first.load(7).unwrap();
    for files in [1, 2, 3, 7] {
        let store = Store::open(place.path().join(format!("{files}")));
        let (mut last, mut all) = (0, 0);
        let mut progress = |done, total| {
            assert!(last <= done && done <= total);
            (last, all) = (done, total);
        };
        let report = store.reshard(&from, &ReshardRequest::even(&specs, files), &mut progress).unwrap();
        assert!(report.path.ends_with("step-00000007"));
        let loaded = store.load(7).unwrap();
        let difference = CheckpointDifference::between(&begun, &loaded, &mut |_, _| ()).unwrap();
        assert!(difference.is_empty(), "{files}: {difference:?}");
        // A tensor with fewer rows than files is not in each of them, and no file is empty.
        assert!(loaded.manifest().files.len() <= files && loaded.manifest().files.len() * 2 > files);
        from = loaded;
    }
    // One file for each of the checkpoint's own, and then the same bytes.
    let (a, b) = (Store::open(place.path().join("a")), Store::open(place.path().join("b")));
    a.reshard(&from, &ReshardRequest::even(&specs, 3), &mut |_, _| ()).unwrap();
    b.reshard(&begun, &ReshardRequest::even(&specs, 3), &mut |_, _| ()).unwrap();
    assert_eq!(files_of(&a.path(7)), files_of(&b.path(7)));
    for name in files_of(&a.path(7)) {
        let read = |s: &Store| std::fs::read(s.path(7).join(&name)).unwrap();
        assert!(read(&a) == read(&b), "{name}");
    }
}

#[test]
fn boxes_that_do_not_cover_the_tensors_and_a_place_that_is_taken_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (first, out) = (Store::open(place.path().join("first")), Store::open(place.path().join("out")));
    save(&first, 7, 4);
    let from = first.load(7).unwrap();
    let even = ReshardRequest::even(&from.specs(), 2);
    let mut short = even.clone();
    short.ranks[0].pop();
    let mut twice = even.clone();
    let again = twice.ranks[0][0].clone();
    twice.ranks[1].push(again);
    let mut absent = even.clone();
    absent.ranks[0].push(TensorSlice { tensor: 5, part: BoxRange::whole(&[1]) });
    for (request, word) in [(short, "cover"), (twice, "cover"), (absent, "there are 5")] {
        let e = out.reshard(&from, &request, &mut |_, _| ()).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
        assert!(out.named_steps().unwrap().is_empty());
    }
    out.reshard(&from, &even, &mut |_, _| ()).unwrap();
    let e = out.reshard(&from, &even, &mut |_, _| ()).unwrap_err().to_string();
    assert!(e.contains("already exists"), "{e}");
}

#[test]
fn a_copy_has_the_same_bytes_and_a_damaged_checkpoint_is_not_copied() {
    for compressed in [false, true] {
        copies(compressed);
    }
}

fn copies(compressed: bool) {
    let place = tempfile::tempdir().unwrap();
    let (first, out) = (Store::open(place.path().join("first")), Store::open(place.path().join("out")));
    let first = first.compressing(compressed);
    save(&first, 7, 4);
    save(&first, 9, 4);
    assert!(out.copy_from(&first, 7, &mut |_, _| ()).unwrap().is_some());
    assert!(out.copy_from(&first, 7, &mut |_, _| ()).unwrap().is_none(), "it is there");
    for name in files_of(&first.path(7)) {
        let read = |s: &Store| std::fs::read(s.path(7).join(&name)).unwrap();
        assert!(read(&first) == read(&out), "{name}");
    }
    let name = first.load(9).unwrap().manifest().files[1].name.clone();
    let mut bytes = std::fs::read(first.path(9).join(&name)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(first.path(9).join(&name), bytes).unwrap();
    let e = out.copy_from(&first, 9, &mut |_, _| ()).unwrap_err().to_string();
    assert!(e.contains(&name) && e.contains("damaged"), "{e}");
    assert_eq!(files_of(&place.path().join("out")), [".lock", "step-00000007"]);
}
