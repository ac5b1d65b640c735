//! Event files, against bytes made by TensorBoard's own classes and against a decoder written for this test.

use bessemer_runlog::{
    End, EndReason, Eval, HyperParameter, Record, Sample, Step, TensorBoard, Warning, masked_crc32c,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Made with the Python package tensorboard 2.21.0: `event_pb2.Event(...).SerializeToString()`, framed with its
/// `masked_crc32c`: file version; session start at step 301; train/loss 2.5 and train/lr 3e-4 at step 301.
const GOLDEN: [&str; 3] = [
    "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110100000000000000095fb",
    "fe180900002040fc54d94110ad023a020801596f3f793200000000000000241956ec0900005040fc54d94110ad022a240a11",
    "0a0a747261696e2f6c6f737315000020400a0f0a08747261696e2f6c721552499d39b249a740",
];

#[test]
fn the_bytes_are_those_of_tensorboards_own_classes() {
    let dir = tempfile::tempdir().unwrap();
    let mut board = TensorBoard::create(dir.path(), "a host/ü", 1_700_000_000.5, Some(300)).unwrap();
    board.scalars(1_700_000_001.25, 301, &[("train/loss", 2.5), ("train/lr", 3e-4)]).unwrap();
    let found: String = fs::read(board.path()).unwrap().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(found, GOLDEN.concat());
    assert_eq!(board.path().file_name().unwrap(), "events.out.tfevents.1700000000.a-host--");
}

/// Made in the same way from messages of the hparams plugin and of TensorBoard's text summaries: the text "# é" at step 7,
/// the start of a session with a switch, a number and a text, and its end by an error.
const GOLDEN_PLUGINS: [&str; 7] = [
    "31000000000000009d8383e90900005040fc54d94110072a240a220a06726563697065420e080712041202080142042320c3",
    "a94a080a060a0474657874dc5f84558500000000000000e98acc590900005040fc54d9412a7a0a780a1c5f68706172616d73",
    "5f2f73657373696f6e5f73746172745f696e666f42060801120212004a500a4e0a0768706172616d7312431a410a0c0a0661",
    "2e62696173120220000a110a04622e6c72120911613255302aa9333f0a120a06632e6b696e6412081a06636f73696e652201",
    "672900005040fc54d9416309fc9c4d000000000000003d63d4a6090000a040fc54d9412a420a400a1a5f68706172616d735f",
    "2f73657373696f6e5f656e645f696e666f42060801120212004a1a0a180a0768706172616d73120d220b0802110000a040fc",
    "54d94176c67ae3",
];

#[test]
fn texts_and_hyperparameters_are_those_of_tensorboards_own_classes() {
    let dir = tempfile::tempdir().unwrap();
    let mut board = TensorBoard::create(dir.path(), "run", 1.0, None).unwrap();
    let begin = fs::read(board.path()).unwrap().len();
    board.text(1_700_000_001.25, 7, "recipe", "# é").unwrap();
    let values = [
        ("a.bias".to_owned(), HyperParameter::Switch(false)),
        ("b.lr".to_owned(), HyperParameter::Number(3e-4)),
        ("c.kind".to_owned(), HyperParameter::Text("cosine".into())),
    ];
    board.hyperparameters(1_700_000_001.25, "g", &values).unwrap();
    let end = End { reason: EndReason::Failed, ..End::default() };
    board.record(1_700_000_002.5, &end.into()).unwrap();
    let bytes = fs::read(board.path()).unwrap();
    let found: String = bytes[begin..].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(found, GOLDEN_PLUGINS.concat());
}

/// TensorBoard itself reads scalars, texts and hyperparameters back from files of a run that was resumed.
#[test]
#[ignore = "compares with an outside tool: BESSEMER_PYTHON=… cargo test oracle -- --ignored (golden/requirements.txt)"]
fn oracle_tensorboard_shows_texts_and_hyperparameters() {
    let python = std::env::var_os("BESSEMER_PYTHON")
        .expect("BESSEMER_PYTHON names a Python with the packages of golden/requirements.txt");
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let values = [
        ("optim.lr".to_owned(), HyperParameter::Number(1e-3)),
        ("optim.kind".to_owned(), HyperParameter::Text("adamw".into())),
        ("model.bias".to_owned(), HyperParameter::Switch(true)),
    ];
    let step = |step| Record::from(Step { step, loss: 4.0 - step as f64, ..Step::default() });
    let sample =
        |step| Sample { step, prompt: "fn ".into(), text: "x() {}\n```\n".into(), temperature: Some(0.8) };
    for (session, resumed) in [(0u32, None), (1, Some(2))] {
        let time = 100.0 + 10.0 * f64::from(session);
        let mut board = TensorBoard::create(&run, "run", time, resumed).unwrap();
        board.text(time, 0, "recipe", "```toml\nseed = 1\n```").unwrap();
        board.hyperparameters(time, "run", &values).unwrap();
        let first = 1 + 2 * u64::from(session);
        let records = [step(first), step(first + 1), sample(first + 1).into(), End::default().into()];
        records.iter().for_each(|r| board.record(time + 1.0, r).unwrap());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard_oracle.py");
    let out = Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}{errors}");
    let wanted = "\
scalar train/loss 1:3.0 2:2.0 3:1.0 4:0.0
text recipe 0
text samples/fn 2 4
status STATUS_SUCCESS
hparam model.bias True
hparam optim.kind adamw
hparam optim.lr 0.001
metric train/loss 0.0
";
    assert_eq!(text, wanted, "{errors}");
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Event {
    wall_time: f64,
    step: u64,
    file_version: Option<String>,
    session: Option<u64>,
    scalars: BTreeMap<String, f32>,
}

/// One field of a message: (number, varint or length-delimited or fixed bytes).
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!()
    }
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                out.push((key >> 3, varint(&mut bytes), Vec::new()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        out.push((key >> 3, 0, bytes[..length].to_vec()));
        bytes = &bytes[length..];
    }
    out
}

fn decode(mut file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        assert_eq!(file[8..12], masked_crc32c(&file[..8]).to_le_bytes());
        let message = &file[12..12 + length];
        assert_eq!(file[12 + length..16 + length], masked_crc32c(message).to_le_bytes());
        file = &file[16 + length..];
        let mut event = Event::default();
        for (number, value, bytes) in fields(message) {
            match number {
                1 => event.wall_time = f64::from_le_bytes(bytes.try_into().unwrap()),
                2 => event.step = value,
                3 => event.file_version = Some(String::from_utf8(bytes).unwrap()),
                5 => {
                    for (number, _, value) in fields(&bytes) {
                        assert_eq!(number, 1);
                        let entry = fields(&value);
                        assert_eq!((entry[0].0, entry[1].0, entry.len()), (1, 2, 2));
                        let tag = String::from_utf8(entry[0].2.clone()).unwrap();
                        let scalar = f32::from_le_bytes(entry[1].2.clone().try_into().unwrap());
                        assert!(event.scalars.insert(tag, scalar).is_none());
                    }
                }
                7 => event.session = Some(fields(&bytes)[0].1),
                other => panic!("field {other}"),
            }
        }
        events.push(event);
    }
    events
}

#[test]
fn step_and_eval_records_become_scalars() {
    let dir = tempfile::tempdir().unwrap();
    let mut board = TensorBoard::create(dir.path(), "run", 100.0, None).unwrap();
    let (data_seconds, data_bytes) = (Some(0.125), Some(4096));
    let step = Step {
        step: 1 << 40,
        loss: f64::NAN,
        lr: 0.5,
        mfu: Some(0.25),
        data_seconds,
        data_bytes,
        ..Step::default()
    };
    let eval = Eval { step: 7, split: "valid".into(), loss: 2.0, bits_per_byte: 1.5, ..Eval::default() };
    let warning = Warning { topic: "x".into(), ..Warning::default() };
    for record in [Record::from(step), eval.into(), warning.into()] {
        board.record(101.5, &record).unwrap();
    }
    let events = decode(&fs::read(board.path()).unwrap());
    assert_eq!(events.len(), 3);
    assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
    assert_eq!((events[1].wall_time, events[1].step), (101.5, 1 << 40));
    assert!(events[1].scalars["train/loss"].is_nan());
    assert_eq!((events[1].scalars["train/lr"], events[1].scalars["speed/mfu"]), (0.5, 0.25));
    assert_eq!((events[1].scalars["data/wait_seconds"], events[1].scalars["data/bytes"]), (0.125, 4096.0));
    assert!(!events[1].scalars.contains_key("memory/bytes"));
    let tags: Vec<&str> = events[2].scalars.keys().map(String::as_str).collect();
    assert_eq!(tags, ["eval/valid/bits_per_byte", "eval/valid/loss", "eval/valid/perplexity"]);
    assert_eq!(events[2].scalars["eval/valid/bits_per_byte"], 1.5);
}

#[test]
fn a_further_process_within_the_same_second_gets_a_file_that_sorts_later() {
    let dir = tempfile::tempdir().unwrap();
    let boards: Vec<_> =
        (0..3).map(|i| TensorBoard::create(dir.path(), "run", 100.0, Some(i)).unwrap()).collect();
    let names: Vec<_> = boards.iter().map(|b| b.path().to_owned()).collect();
    assert!(names.is_sorted() && names[0] != names[1] && names[1] != names[2]);
    for (i, board) in boards.iter().enumerate() {
        let events = decode(&fs::read(board.path()).unwrap());
        assert_eq!((events[1].session, events[1].step), (Some(1), i as u64 + 1));
    }
}
