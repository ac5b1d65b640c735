//! Schedule files: read, written, and refused.

use bessemer_schedule::{
    Fill, Filler, Instruction, Kind, Limits, Program, ScheduleError, Shape, generate, parse, verify,
};
use proptest::prelude::*;

const EAGER: &str = include_str!("../../../../docs/schedules/eager-1f1b.schedule");

#[test]
fn the_example_is_eager_1f1b() {
    let program = parse(EAGER).unwrap();
    assert_eq!((program.name.as_str(), program.ranks(), program.micro_batches()), ("eager 1f1b", 4, 8));
    assert_eq!(verify(&program, &Limits::default()).unwrap().peak_live, [7.0, 5.0, 3.0, 1.0]);
}

#[test]
fn the_example_of_the_readme_is_sound() {
    let readme = include_str!("../../README.md");
    let text = readme.split("```").find(|part| part.trim_start().starts_with("bessemer-schedule")).unwrap();
    let program = parse(text).unwrap();
    assert_eq!((program.stages, program.ranks()), (4, 2));
    assert_eq!(verify(&program, &Limits::default()).unwrap().peak_live, [1.75, 2.0]);
}

#[test]
fn every_kind_survives_the_text() {
    for kind in Kind::ALL {
        let mut shape = Shape::new(4, 16);
        shape.update_every = kind.asynchronous().then_some(4);
        let mut program = generate(kind, &shape).unwrap();
        assert_eq!(parse(&program.to_text()).unwrap(), program, "{kind}");
        assert_eq!(parse(&program.without_communication().to_text()).unwrap(), program, "{kind}");
        for (unit, filler) in Filler::ALL.into_iter().enumerate() {
            program.lists[unit % 4].insert(3 * unit, Instruction::Fill(Fill { filler, chunk: 0, unit }));
        }
        assert_eq!(parse(&program.to_text()).unwrap(), program, "{kind} with fillers");
        assert_eq!(
            parse(&program.without_communication().to_text()).unwrap().lists[0].len(),
            program.lists[0].len()
        );
    }
}

/// Returns the error about a file.
fn refusal(text: &str) -> String {
    parse(text).expect_err("the file is wrong").to_string()
}

#[test]
fn errors_name_line_and_column() {
    let good =
        "bessemer-schedule 1\nname x\nmicro-batches 2\nroute 0 1\nrank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 B1\n";
    parse(good).unwrap();
    for (old, new, wanted) in [
        ("bessemer-schedule 1", "bessemer-schedule 2", "line 1, column 19: version \"2\""),
        ("bessemer-schedule 1", "schedule 1", "line 1, column 1: a schedule file begins"),
        ("name x", "title x", "line 2, column 1: unknown line \"title\""),
        ("name x", "name", "line 2, column 1: a name has"),
        ("name x", "name x\nname y", "line 3, column 1: \"name\" occurs twice"),
        ("name x\n", "", "line 5, column 1: the file ends without a name"),
        ("micro-batches 2", "micro-batches two", "line 3, column 15: expected a number, found \"two\""),
        ("micro-batches 2", "micro-batches 9999999999", "at most nine digits"),
        ("micro-batches 2", "micro-batches 999999999", "999999999 micro-batches through 2 stages"),
        ("route 0 1", "route 0 1.", "line 4, column 11: expected a number after \"1.\""),
        ("route 0 1", "route 0 7", "program: route 0 passes stage 1 on rank 7, and the ranks are 0 to 1"),
        ("route 0 1", "route 0 1.3", "program: chunks of rank 1 are to be numbered from 0"),
        (
            "route 0 1",
            "route 0 1\nroutes 0*3",
            "line 5, column 1: expected 2 numbers, one a micro-batch, found 3",
        ),
        ("route 0 1", "route 0 1\nroutes 0 4", "program: micro-batch 1 takes route 4"),
        ("route 0 1", "route 0 1\nupdates 0 999999999", "program: 1000000000 updates for 2 micro-batches"),
        ("rank 0:", "rank 0", "line 5, column 6: expected a colon"),
        ("rank 1:", "rank 2:", "line 6, column 6: wanted rank 1: ranks are listed in order"),
        ("F0 F1 B0", "F0 ñ F1 X1 B0", "line 5, column 12: unknown instruction \"ñ\""),
        ("F0 F1 B0", "F0 F1& B0", "line 5, column 14: expected the end of the word, found \"&\""),
        ("F0 F1 B0", "F0 F1@ B0", "line 5, column 15: expected a number after \"F1@\""),
        ("F0 F1 B0", "F0 F3 B0", "rank 0, instruction 1 (F3): micro-batches are 0 to 1"),
        ("F0 F1 B0", "F0 F1.2 B0", "rank 0, instruction 1 (F1.2): the number of chunks on the rank is 1"),
        ("F0 F1 B0", "F0 F0 B0", "for the second time"),
        ("F0 F1 B0 B1", "F0 B0 F1 B1 sendA0>1", "rank 0, instruction 1 (B0): its gradient from rank 1"),
        ("F0 B0 F1 B1", "F1 B1 F0", "the ranks have 7"),
        ("F0 F1 B0 B1\nrank 1: F0 B0 F1 B1", "F0 B0 F1 B1\nrank 1: F0 F1 B0 B1", "deadlock: rank"),
    ] {
        assert!(good.contains(old), "{old}");
        let found = refusal(&good.replacen(old, new, 1));
        assert!(found.contains(wanted), "wanted {wanted:?}, found {found:?}");
    }
    assert!(refusal("").contains("found nothing"));
}

#[test]
fn a_deadlock_is_a_circle() {
    let text =
        "bessemer-schedule 1\nname x\nmicro-batches 2\nroute 0 1\nrank 0: F0 B0 F1 B1\nrank 1: F0 F1 B0 B1\n";
    let Err(ScheduleError::Deadlock { waits }) = parse(text) else { panic!() };
    assert_eq!(
        waits,
        "rank 0 stands at instruction 2 (recvG0<1) and waits for rank 1; rank 1 stands at instruction 2 (recvA1<0) and \
         waits for rank 0"
    );
}

/// Two ranks that hold one stage and meet in their sums of two updates in different order.
#[test]
fn reductions_in_a_different_order_are_a_circle() {
    let tail = |first: usize| {
        let second = 1 - first;
        format!("reduce{first} reduce{second} step0 gather0 step1 gather1")
    };
    let text = |first: usize, second: usize| {
        format!(
            "bessemer-schedule 1\nname x\nmicro-batches 4\nroute 0\nroute 1\nroutes 0 1 0 1\nupdates 0*2 1*2\n\
             rank 0: F0 B0 F2 B2 {}\nrank 1: F1 B1 F3 B3 {}\n",
            tail(first),
            tail(second)
        )
    };
    parse(&text(0, 0)).unwrap();
    let found = refusal(&text(0, 1));
    assert!(found.contains("rank 0 stands at instruction 4 (reduce0) and waits for rank 1"), "{found}");
    assert!(found.contains("rank 1 stands at instruction 4 (reduce1) and waits for rank 0"), "{found}");
}

fn words() -> impl Strategy<Value = String> {
    let words = [
        "bessemer-schedule",
        "1",
        "name",
        "x",
        "micro-batches",
        "2",
        "route",
        "routes",
        "updates",
        "0",
        "0.1",
        "1.1",
        "0*2",
        "rank",
        "0:",
        "1:",
        "F0",
        "B0",
        "F1",
        "B1",
        "I0",
        "W0",
        "F0&B1",
        "F0.1@1",
        "sendA0>1",
        "recvA0<0",
        "reduce0",
        "step0",
        "gather0",
        "copy0",
        "\n",
        "\n",
        "#",
        "é",
        "999999999",
        "F999999999",
        "-1",
        "..",
    ];
    let words = prop::collection::vec(prop::sample::select(words.to_vec()), 0..60);
    words.prop_map(|words| format!("bessemer-schedule 1\n{}", words.join(" ")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands in a file, there is an answer.
    #[test]
    fn any_text_has_an_answer(text in prop_oneof![".*", words()]) {
        let _ = parse(&text);
    }

    /// A file with one place changed is refused, or is another sound program.
    #[test]
    fn a_changed_file_has_an_answer(at in any::<prop::sample::Index>(), new in "[ -~]{0,3}") {
        let at = at.index(EAGER.len());
        if let Ok(program) = parse(&format!("{}{new}{}", &EAGER[..at], &EAGER[at + 1..])) {
            prop_assert!(verify(&program, &Limits::default()).is_ok());
        }
    }

    /// Reading what was written gives the same program.
    #[test]
    fn text_and_back(p in 1_usize..6, m in 1_usize..12, every in 1_usize..3) {
        let mut shape = Shape::new(p, m * every);
        shape.update_every = Some(every);
        let program: Program = generate(Kind::PipeDream, &shape).unwrap();
        prop_assert_eq!(parse(&program.to_text()).unwrap(), program);
    }
}
