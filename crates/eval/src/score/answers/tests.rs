use super::*;
use crate::TasksConfig;
use crate::score::TokenLosses;
use crate::score::prepared::{ModelLengths, PreparedTasks};
use crate::score::rows::OneLength;
use bessemer_loader::IGNORED;
use bessemer_tasks::Catalog;
use bessemer_tokenizer::{TokenizerConfig, TokenizerKind, Trainer};

fn tokenizer() -> Tokenizer {
    let config =
        TokenizerConfig { kind: TokenizerKind::ByteBpe, vocab_size: 300, ..TokenizerConfig::default() };
    let mut trainer = Trainer::new(config).unwrap();
    trainer.feed(&"the cat sat on the mat and the dog sat on the log. ".repeat(20));
    trainer.finish(|_| ()).unwrap()
}

fn pair(context: &str, continuation: &str) -> (Vec<u32>, Vec<u32>) {
    let row = encode_pair(&tokenizer(), context, continuation, 100).unwrap();
    let at = row.tokens.len() - row.scored;
    (row.tokens[..at].to_vec(), row.tokens[at..].to_vec())
}

#[test]
fn pairs_are_encoded_together_and_cut_after_the_context() {
    let tokenizer = tokenizer();
    let (end, encode) =
        (tokenizer.end_of_text().unwrap(), |text: &str| tokenizer.encode(text.as_bytes()).unwrap());
    // Blanks move to the continuation.
    assert_eq!(pair("the cat ", "sat"), (encode("the cat"), encode(" sat")));
    assert_eq!(pair("the cat", " sat"), (encode("the cat"), encode(" sat")));
    assert_eq!(pair("", " sat"), (vec![end], encode(" sat")));
    assert_eq!(pair("  ", "sat"), (vec![end], encode("  sat")));
    // The continuation is what is left of both, which may be other tokens than it has by itself.
    let (context, continuation) = pair("the c", "at sat on the mat");
    assert_eq!(context.len(), encode("the c").len());
    assert_eq!([context, continuation].concat(), encode("the cat sat on the mat"));
    // A continuation that begins with the end of text is not given it twice.
    let text = String::from_utf8(tokenizer.token_bytes(end).unwrap().to_vec()).unwrap();
    if !text.is_empty() {
        assert_eq!(pair("", &format!("{text}sat")).0, [end]);
    }
    // What is too long loses its beginning, and a continuation that cannot fit is refused.
    let row = encode_pair(&tokenizer, &"the cat sat ".repeat(9), "on", 8).unwrap();
    assert_eq!((row.tokens.len(), row.scored), (9, encode(" on").len()));
    let e = encode_pair(&tokenizer, "the", &" cat".repeat(9), 8).unwrap_err().to_string();
    assert!(e.contains("wanted a continuation of 1 to 8 tokens"), "{e}");
    assert!(encode_pair(&tokenizer, "the", "", 8).is_err());
}

/// Each token costs as many nats as its number, after any other.
struct Numbers {
    sequences: usize,
    seq: usize,
}

impl TokenLosses for Numbers {
    fn shape(&self) -> (usize, usize) {
        (self.sequences, self.seq)
    }

    fn token_losses(&mut self, _: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), EvalError> {
        for (loss, target) in losses.iter_mut().zip(targets) {
            *loss = if *target == IGNORED { 0.0 } else { *target as f32 };
        }
        Ok(())
    }
}

#[test]
fn answers_stand_in_the_order_of_the_requests() {
    let tokenizer = tokenizer();
    let tasks = Catalog::default().load(&["questions".to_owned()]).unwrap().tasks;
    let requests = tasks[0].requests(Some(9)).unwrap();
    for sequences in [1, 4] {
        let mut numbers = Numbers { sequences, seq: 256 };
        let mut told = Vec::new();
        let mut tell = |done, all| told.push((done, all));
        let rows = TaskRows::new(&requests, &tokenizer, 256).unwrap();
        let answers = rows.answers(&requests, &mut OneLength(&mut numbers), &mut tell).unwrap();
        assert_eq!(told.last(), Some(&(36, 36)));
        for (document, answers) in requests.documents.iter().zip(&answers) {
            for (request, answer) in document.requests.iter().zip(answers) {
                let Request::LogLikelihood { context, continuation } = request else { panic!("{request:?}") };
                let row = encode_pair(&tokenizer, context, continuation, 256).unwrap();
                let sum: f64 =
                    row.tokens[row.tokens.len() - row.scored..].iter().map(|token| f64::from(*token)).sum();
                assert_eq!(*answer, Answer::LogLikelihood { value: -sum, greedy: None });
            }
        }
    }
}

/// Writes the tokens of a text, whatever stands before.
struct Reciter {
    tokens: Vec<u32>,
    held: usize,
    given: Vec<u32>,
    logits: Vec<f32>,
}

impl NextToken for Reciter {
    fn capacity(&self) -> usize {
        40
    }
    fn held(&self) -> usize {
        self.held
    }
    fn truncate(&mut self, len: usize) {
        self.held = len;
        self.given.clear();
    }
    fn feed(&mut self, ids: &[u32]) -> Result<&[f32], EvalError> {
        self.given.extend_from_slice(ids);
        self.held += ids.len();
        let next = self.tokens.first().copied().unwrap_or(0);
        self.tokens.rotate_left(1);
        self.logits = vec![0.0; 400];
        self.logits[next as usize] = 1.0;
        Ok(&self.logits)
    }
}

#[test]
fn generated_texts_follow_the_end_of_the_context_and_end_at_a_stop() {
    let tokenizer = tokenizer();
    let tokens = tokenizer.encode(b" the cat\nQ: sat").unwrap();
    let generation = |until: &[&str]| Generation {
        until: until.iter().map(|s| (*s).to_owned()).collect(),
        max_tokens: 12,
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
    };
    let of = |until: &[&str], context: &str| {
        let mut model = Reciter { tokens: tokens.clone(), held: 0, given: Vec::new(), logits: Vec::new() };
        let text = text(&mut model, &tokenizer, context, &generation(until), 0).unwrap();
        (text, model.given)
    };
    assert_eq!(of(&["\n", "sat"], "x").0, " the cat");
    assert!(of(&[], "x").0.starts_with(" the cat\nQ: sat"));
    let long = "the cat sat on the mat ".repeat(20);
    let (_, given) = of(&["Q"], &long);
    // 40 positions less 12 tokens of text are left to the context.
    assert_eq!(
        given[..28],
        tokenizer.encode(long.as_bytes()).unwrap()[tokenizer.encode(long.as_bytes()).unwrap().len() - 28..]
    );
    let mut model = Reciter { tokens, held: 0, given: Vec::new(), logits: Vec::new() };
    let most = Generation { max_tokens: 40, ..generation(&[]) };
    assert!(text(&mut model, &tokenizer, "x", &most, 0).unwrap_err().to_string().contains("max_gen_toks"));
}

fn lengths(longest: usize) -> ModelLengths {
    ModelLengths { longest, context: longest }
}

#[test]
fn tasks_of_a_training_are_checked_before_it_and_scored_in_it() {
    let tokenizer = tokenizer();
    let config = |names: &[&str]| TasksConfig {
        names: names.iter().map(|s| (*s).to_owned()).collect(),
        limit: 7,
        ..TasksConfig::default()
    };
    let tasks =
        PreparedTasks::new(&config(&["logic", "grammar"]), &Catalog::default(), &tokenizer, lengths(64))
            .unwrap();
    let mut numbers = Numbers { sequences: 2, seq: 64 };
    let scores = tasks.score(&mut OneLength(&mut numbers), 30, &mut |_, _| ()).unwrap();
    assert_eq!(
        scores.iter().map(|task| (task.task.as_str(), task.documents)).collect::<Vec<_>>(),
        [("logic", 7), ("grammar", 7)]
    );
    assert!(scores[0].signature.contains("|window:64|step:30|"), "{}", scores[0].signature);
    assert!(
        PreparedTasks::new(&config(&[]), &Catalog::default(), &tokenizer, lengths(64)).unwrap().is_empty()
    );
    assert!(matches!(
        PreparedTasks::new(&config(&["nothing"]), &Catalog::default(), &tokenizer, lengths(64)),
        Err(EvalError::Task(_))
    ));
    // Two tokens of input do not hold a continuation.
    assert!(matches!(
        PreparedTasks::new(&config(&["questions"]), &Catalog::default(), &tokenizer, lengths(2)),
        Err(EvalError::Request(_))
    ));
}
