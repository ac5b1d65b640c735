//! Tables of measured steps.

use bessemer_plan::{GivenColumns, Machine, PlanError, Recompute, TableReader, ZeroStage, read_table};

/// Columns that a short table does not have.
fn given(specs: &[&str]) -> Result<GivenColumns, PlanError> {
    GivenColumns::parse(&specs.iter().map(|spec| (*spec).to_owned()).collect::<Vec<_>>())
}

fn read_given(text: &str, only: bool, specs: &[&str]) -> Result<bessemer_plan::Table, PlanError> {
    let machine = Machine::named("a100-80gb").unwrap();
    read_table(text, &TableReader { machine: Some(&machine), only, given: &given(specs)? })
}

fn read(text: &str, only: bool) -> Result<bessemer_plan::Table, PlanError> {
    read_given(text, only, &["megatron", "tp=1,pp=1,micro_batch=1"])
}

#[test]
fn what_a_table_does_not_have_is_given_for_all_rows() {
    let table = read("hidden,heads,layers,seq,tp,pp,gpus,micro_batch,global_batch,time_ms\n4096,32,36,2048,4,1,128,16,512,3696\n", false).unwrap();
    let step = &table.steps[0];
    assert_eq!((step.row, step.seconds), (1, 3.696));
    assert_eq!(
        (step.job.model.vocab, step.job.model.ffn_width, step.job.model.kv_heads),
        (51_200, 16_384, 32)
    );
    let layout = step.job.layout;
    assert_eq!(
        (layout.data, layout.chunks, layout.zero, layout.recompute),
        (32, 1, ZeroStage::Ddp, Recompute::Full)
    );
    assert!(!step.job.fused_attention);
    // Cells of the table come first, then single values, then those of Megatron-LM.
    let text = "hidden,heads,layers,seq,tp,pp,gpus,micro_batch,global_batch,time_ms,vocab\n\
                4096,32,36,2048,4,1,128,16,512,3696,\n4096,32,36,2048,4,1,128,16,512,3696,1000\n";
    let specs = ["vocab=2000", "megatron", "kv_heads=8, ffn=2.5*hidden", "recompute=selective"];
    let steps = read_given(text, false, &specs).unwrap().steps;
    assert_eq!(steps.iter().map(|step| step.job.model.vocab).collect::<Vec<_>>(), [2000, 1000]);
    let model = steps[0].job.model;
    assert_eq!((model.kv_heads, model.ffn_width), (8, 10_240));
    assert_eq!(steps[0].job.layout.recompute, Recompute::Attention);
}

/// No column has a default. All that are missing are named at once, with the values that they take.
#[test]
fn columns_that_are_not_there_are_refused_by_name() {
    let text = "hidden,heads,layers,seq,tp,pp,gpus,micro_batch,global_batch,time_ms\n4096,32,36,2048,4,1,128,16,512,3696\n";
    let error = read_given(text, false, &[]).unwrap_err().to_string();
    for part in [
        "line 1: the table does not have the columns kv_heads (N or heads), ffn (N or 4*hidden), gated (yes or no), vocab (N)",
        "cp (N), virtual (N), zero or scheme (0, 1, 2 or 3), recompute or full_recompute_s or sp_selective_s (none, rows,",
        "attention (fused or stored), gradient_bytes (2 or 4); add them to the table",
        "--column kv_heads=VALUE",
        "--column megatron",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Each of them by itself.
    let columns =
        "vocab kv_heads ffn gated cp virtual zero recompute sequence overlap attention gradient_bytes";
    let values = ["51200", "heads", "4*hidden", "no", "1", "1", "0", "full", "no", "no", "stored", "2"];
    let all: Vec<String> =
        columns.split(' ').zip(values).map(|(column, value)| format!("{column}={value}")).collect();
    for without in &all {
        let rest: Vec<&str> = all.iter().filter(|one| *one != without).map(String::as_str).collect();
        let error = read_given(text, false, &rest).unwrap_err().to_string();
        let column = without.split_once('=').unwrap().0;
        assert!(error.contains(&format!("does not have the columns {column}")), "{column}: {error}");
    }
    let complete: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(read_given(text, false, &complete), read_given(text, false, &["megatron"]));
    // An empty cell, and a table that names no machine.
    let empty = format!("{}\n", text.trim_end().replace("512,3696", "512,"));
    assert!(read(&empty, false).unwrap_err().to_string().contains("there is no measurement"));
    let none = TableReader { machine: None, only: false, given: &given(&["megatron"]).unwrap() };
    assert!(
        read_table(text, &none)
            .unwrap_err()
            .to_string()
            .contains("no column gpu; name its machine with --machine")
    );
    for (spec, said) in [
        ("vocab", "wanted NAME=VALUE of a column, or megatron"),
        ("vocb=3", "did you mean \"vocab\"?"),
        ("vocab=", "wanted a value for one of the columns hidden"),
    ] {
        let error = given(&[spec]).unwrap_err().to_string();
        assert!(error.contains(said), "{spec}: {error}");
    }
    let circle = read_given(text, false, &["megatron", "vocab=vocab"]).unwrap_err().to_string();
    assert!(circle.contains("vocab is \"vocab\"; wanted a number above 0"), "{circle}");
}

#[test]
fn tokens_a_second_and_rates_become_times() {
    let head = "hidden,heads,layers,seq,gpus,micro_batch,grad_accum,zero,recompute,attention";
    let table =
        read(&format!("{head},tokens_per_s\n1024,16,24,2048,8,4,2,3,none,fused,65536\n"), false).unwrap();
    let step = &table.steps[0];
    assert_eq!((step.job.global_batch, step.seconds), (64, 2.0));
    assert!(step.job.fused_attention && step.job.layout.zero == ZeroStage::Zero3);
    let table =
        read(&format!("{head},tflops_per_gpu\n1024,16,24,2048,8,4,2,0,full,stored,100\n"), false).unwrap();
    let step = &table.steps[0];
    assert!((step.job.hardware_flops() / step.seconds - 1e14).abs() < 1e3);
}

#[test]
fn rows_of_other_machines_and_types_are_left_out() {
    let text = "gpu,precision,hidden,heads,layers,seq,gpus,global_batch,time_s\n\
                a100-40gb,bf16,1024,16,24,2048,8,8,1\nh100-80gb,fp8,1024,16,24,2048,8,8,1\na100-80gb,bf16,1024,16,24,2048,8,8,1\n";
    let table = read(text, false).unwrap();
    assert_eq!((table.steps.len(), table.left_out.len(), table.left_out[0].row), (2, 1, 2));
    assert_eq!(table.steps[0].machine.name, "a100-40gb");
    assert_eq!(read(text, true).unwrap().steps.len(), 1);
}

#[test]
fn wrong_tables_say_the_line_and_what_was_wanted() {
    let head = "hidden,heads,layers,seq,tp,pp,dp,micro_batch,global_batch,time_ms";
    for (row, said) in [
        ("4096,32,36,2048,4,1,8,1,64", "9 cells under 10 names"),
        ("4096,32,36,2048,x,1,8,1,64,1", "tp is \"x\"; wanted a number above 0"),
        ("4096,32,36,2048,1.5,1,8,1,64,1", "tp is 1.5; wanted a whole number"),
        ("4096,32,36,2048,3,1,8,1,64,1", "heads 32 is not divided by tensor ranks 3"),
        ("4096,32,36,2048,4,37,8,1,64,1", "layers 36 is not divided by pipeline stages 37"),
        ("4096,32,36,2048,4,1,8,3,64,1", "global batch 64 is not divided by data ranks times micro-batch 24"),
        ("4096,32,36,2048,4,1,8,1,64,-1", "time_ms is \"-1\"; wanted a number above 0"),
        ("4096,32,36,2048,4,1,8,1,64,", "there is no measurement"),
        (
            ",32,36,2048,4,1,8,1,64,1",
            "there is no hidden; wanted a value in the cell, or one for all rows: --column hidden=VALUE",
        ),
        ("4096,32,36,2048,4,1,99999999999999999999,1,64,1", "wanted a whole number"),
    ] {
        let error = read(&format!("{head}\n{row}\n"), false).unwrap_err().to_string();
        assert!(error.starts_with("line 2: ") && error.contains(said), "{row}: {error}");
    }
    assert!(read("", false).unwrap_err().to_string().contains("column names"));
    assert!(read(head, false).unwrap_err().to_string().contains("no row"));
    let gpu = "gpu,hidden,heads,layers,seq,gpus,global_batch,time_s\nabacus,1024,16,24,2048,8,8,1\n";
    assert!(read(gpu, false).unwrap_err().to_string().contains("no machine has the name \"abacus\""));
    assert!(read(gpu, true).unwrap_err().to_string().contains("no row of a100-80gb"));
    let recompute =
        "hidden,heads,layers,seq,gpus,global_batch,recompute,time_s\n1024,16,24,2048,8,8,some,1\n";
    assert!(
        read(recompute, false)
            .unwrap_err()
            .to_string()
            .contains("wanted one of none, rows, selective, attention-output, full")
    );
}

#[test]
fn a_row_may_hold_two_steps() {
    let table = read(include_str!("../tables/korthikanti_2022.csv"), false).unwrap();
    assert_eq!(table.steps.len(), 4);
    let (full, selective) = (&table.steps[0], &table.steps[1]);
    assert_eq!((full.row, full.seconds, selective.row, selective.seconds), (1, 1.42, 1, 1.1));
    assert!(!full.job.layout.sequence && selective.job.layout.sequence);
    assert_eq!(selective.job.layout.recompute, Recompute::Attention);
}
