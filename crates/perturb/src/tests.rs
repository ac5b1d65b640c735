//! Texts of the tests of NL-Augmenter (`transformations/NAME/test.json`, MIT) and HELM (`augmentations/test_perturbation.py`, Apache 2.0), and what the
//! originals make of them.

use super::*;
use crate::{characters as c, words as w};
use proptest::prelude::*;

const ANDREW: &str = "Andrew finally returned the French book to Chris that I bought last week";
const GAPPING: &str = "Sentences with gapping, such as Paul likes coffee and Mary tea, lack an overt predicate to indicate the relation between two or more arguments.";
const ALICE: &str = "Alice in Wonderland is a 2010 American live-action/animated dark fantasy adventure film";
const UJJAL: &str = "Ujjal Dev Dosanjh served as 33rd Premier of British Columbia from 2000 to 2001";
const NEURO: &str = "Neuroplasticity is a continuous processing allowing short-term, medium-term, and long-term remodeling of the neuronosynaptic organization.";

fn seed(seed: u64) -> PythonRandom {
    PythonRandom::new(seed)
}

/// HELM's tests give their instance the identifier "id0".
fn id0() -> PythonRandom {
    of_document(0, 0)
}

fn each(pairs: &[(&str, &str)], change: impl Fn(&str) -> String) {
    for (text, wanted) in pairs {
        assert_eq!(change(text), *wanted, "{text}");
    }
}

#[test]
fn butter_fingers_are_those_of_nl_augmenter() {
    let pairs = [
        (ANDREW, "Andgew finally returned the French book to Chrus thav I bought last week"),
        (
            GAPPING,
            "Senhences with gapping, such as Paul likes coffwe and Mary tea, lack an overt predicate to indicatx the relauion between two or more argumentd.",
        ),
        (ALICE, "Alife in Wonderland is a 2010 American live-action/abimatev dark fantasy adventure film"),
        (UJJAL, "Ujjwl Dev Dosanjh served as 33rd Premier of Britush Conumbia from 2000 to 2001"),
        (
            NEURO,
            "Neugoplasticity is a continuous processing alliwing vhort-term, medium-term, and long-term remodeling of the beuronosynaptic organization.",
        ),
    ];
    each(&pairs, |text| c::butter_fingers(text, 0.05, &mut seed(0)));
}

#[test]
fn cases_are_those_of_nl_augmenter() {
    let pairs = [
        (ANDREW, "Andrew finally returned the French book tO ChriS that I bought Last week"),
        (
            GAPPING,
            "Sentences with gapping, such as Paul likes CoffeE and Mary tea, lAck an overt predicate to inDicate the relation betweEn two or more arguMents.",
        ),
        (ALICE, "Alice in Wonderland is a 2010 American live-actIon/anImated dark faNtasy adventure film"),
        (UJJAL, "Ujjal Dev Dosanjh served as 33rd Premier of BRitisH Columbia froM 2000 to 2001"),
        (
            NEURO,
            "Neuroplasticity is a continuous processIng alLowing short-tErm, medium-term, and long-terM remodeling of the neuronOsynaptic organiZatioN.",
        ),
    ];
    each(&pairs, |text| c::change_char_case(text, 0.1, &mut seed(0)));
    // The test file of `random_upper_transformation` was made without a seed. These are what its algorithm makes with CPython 3.11 after `random.seed(0)`,
    // one text after the other.
    let mut random = seed(0);
    let pairs = [
        (ANDREW, "AndreW finally returned the FrencH book to Chris ThAt I bought laSt week"),
        (
            GAPPING,
            "Sentences with gapPing, SUch as PauL Likes coffee and MAry tea, Lack an Overt pRedicate to Indicate the relation between tWo or mOre argUments.",
        ),
        (ALICE, "Alice in WonDerland is a 2010 American lIvE-aCtion/animAted Dark fantasY advenTure film"),
    ];
    for (text, wanted) in pairs {
        assert_eq!(c::random_upper(text, 0.1, &mut random), wanted);
    }
}

#[test]
fn blanks_are_those_of_nl_augmenter_and_helm() {
    let pairs = [
        (ANDREW, "Andrew finally returned the French b ook t o Chris that I bought last week"),
        (
            GAPPING,
            "Sentences with gapping, such as Paul  like s coffee and Mary tea, lack an overt predicate to indicate the relationbetwe en twoo r morearguments .",
        ),
        (ALICE, "Alice in Wonderland is a 2010 Americ an li ve-action/animated dark fantasy adventure film"),
        (UJJAL, "Ujjal Dev Dosanjh served as 33rd Pre mierof British Columbia from 2000 to 2001"),
        (
            NEURO,
            "Neuroplasticity is a continuous proc essin g allowing short-term, medium-term, and long-term remodeling of the neur onosy naptico rganiza tion.",
        ),
    ];
    each(&pairs, |text| c::whitespace(text, 0.1, &mut seed(0)));
    let pairs = [
        (ANDREW, "Andrew finally_returned the French book to Chris that I_bought last week"),
        (
            GAPPING,
            "Sentences with_gapping, such as Paul likes coffee and Mary_tea, lack an_overt predicate to indicate the relation between_two or more arguments.",
        ),
        (ALICE, "Alice in_Wonderland is a 2010 American live-action/animated dark fantasy_adventure film"),
        (UJJAL, "Ujjal Dev_Dosanjh served as 33rd Premier of British Columbia_from 2000 to_2001"),
        (
            NEURO,
            "Neuroplasticity is_a continuous processing allowing short-term, medium-term, and long-term_remodeling of the_neuronosynaptic organization.",
        ),
    ];
    each(&pairs, |text| c::underscore_trick(text, 0.05, &mut seed(42)));
    let hello = "Hello World!\nQuite a day, huh?";
    assert_eq!(c::space(hello, 3, &mut id0()), "Hello   World!\nQuite a  day,   huh?");
    assert_eq!(c::extra_space("Hello my name is"), "Hello  my  name  is");
}

#[test]
fn leet_letters_are_those_of_nl_augmenter() {
    let pairs = [
        (ANDREW, "4ndre3 finally returned t43 French 600k t0 04ris that 1 60u94t last 3e3k"),
        (
            GAPPING,
            "5entenc3s 3ith gappin9, such as Paul lik3s c0ff33 and Mary tea, lack an 0v3rt pr3dicat3 t0 indicate t43 r3lati0n b3t333n t30 0r 3or3 ar9u33nts.",
        ),
        (ALICE, "4lic3 in Wond3rland is a 2010 433rican liv3-acti0n/ani3at3d dark fantas4 adv3ntur3 fil3"),
        (UJJAL, "U7jal 0ev D0san74 serv3d as 33rd Pr33i3r 0f 8ritis4 00lu36ia fr0m 2000 t0 2001"),
        (
            NEURO,
            "11europlasticit4 is a c0ntinuous proc3ssing all03in9 s40rt-ter3, 33diu3-t3r3, and l0n9-t3r3 re30d3lin9 0f t43 n3ur0n0s4naptic 0r9anizati0n.",
        ),
    ];
    each(&pairs, |text| c::leet_letters(text, 0.5, &mut seed(0)));
    assert_eq!(c::leet_letters("aaaa", 0.5, &mut seed(0)), "aaaa");
}

/// Made by the algorithm of NL-Augmenter's `swap_characters` with NumPy 2.4.6: `RandomState` of the sum of the code points, `rand`, `shuffle`.
#[test]
fn swapped_characters_are_those_of_numpy() {
    let fox = "The quick brown fox jumps over the lazy dog, again and again, in the same old forest.";
    let cases = [
        (ANDREW, 0.05, "Andrew finally returned the French book to Chris that I bought lats week"),
        (ANDREW, 0.5, "Anrde wiafnlylt reurentde  Fher ncbhoo k torChist tha  Ibouhgt latse ewk"),
        (UJJAL, 0.05, "Ujjal Dev Dosanjh served as 3r3d Premier of British Columbia from 2000 to 2001"),
        (UJJAL, 0.5, "UjajDl ve Dsaonsjh ervd aes33d  rrPemi erof Btrisih olCuimbfa  ro0m200 t2o 001"),
        ("ab", 0.5, "ab"),
        (fox, 0.05, "The uqick brown fox jumsp over the lazy dog ,again an dagain, in the asme old forest."),
        (fox, 0.5, "heqTu kic brwono xf jmuspv roet ehz lay o,d gaiganan  dagai, n itnh emsaoe dlf oerst."),
    ];
    for (text, rate, wanted) in cases {
        assert_eq!(c::swap_characters(text, rate, 0), wanted, "{text} {rate}");
    }
}

#[test]
fn typos_misspellings_and_fillers_are_those_of_helm() {
    assert_eq!(
        c::typos("After their marriage, she started a close collaboration with Karvelas.", 0.1, &mut id0()),
        "After tjeir marriage, she xrwrted a cloae dollabpration with Iarvwlas."
    );
    assert_eq!(
        w::misspelling("Already, the new product is not available.", 1.0, &mut id0()),
        "Alreayd, hten new product is nto avaliable."
    );
    // Without the nine phrases of opinion.
    assert_eq!(
        w::filler_words(
            "The quick brown fox jumps over the lazy dog.",
            0.3,
            &lists::FILLERS[9..],
            &mut id0()
        ),
        "The quick brown fox jumps over like the lazy probably dog."
    );
}

#[test]
fn contractions_are_those_of_helm_and_nl_augmenter() {
    let long = "She is a doctor, and I am a student";
    let short = "She's a doctor, and I'm a student";
    assert_eq!(w::contraction(long), short);
    assert_eq!(w::expansion(short), long);
    let pairs = [
        ("Alex can't afford to buy that car", "Alex cannot afford to buy that car"),
        ("You can go ahead, I'll join you later.", "You can go ahead, I will join you later."),
        ("He often doesn't come to school.", "He often does not come to school."),
        (
            "Right now, I'm not sure what to wear to the interview.",
            "Right now, I am not sure what to wear to the interview.",
        ),
        ("He is a doctor, but she's a teacher.", "He is a doctor, but she is a teacher."),
        (
            "Return same sentence when no contraction is present",
            "Return same sentence when no contraction is present",
        ),
    ];
    each(&pairs, w::expansion);
    let pairs = [
        (
            "There is always another opportunity to be had down the road.",
            "There's always another opportunity to be had down the road.",
        ),
        ("He is a doctor, but she's a teacher.", "He's a doctor, but she's a teacher."),
    ];
    each(&pairs, w::contraction);
}

#[test]
fn dates_diacritics_and_pig_latin_are_those_of_nl_augmenter() {
    let pairs = [
        ("I am busy Saturday night.", "I am busy Sat. night."),
        ("When: Thu. 29 Jun. 16:00 GMT+2", "When: Thursday 29 June 16:00 GMT+2"),
        (
            "On October I am on holidays but I will be back Sun. 31.",
            "On Oct. I am on holidays but I will be back Sunday 31.",
        ),
        ("We will meet on Monday.", "We will meet on Mon.."),
        (
            "The restaurant is open on Sundays and closed on Augusts.",
            "The restaurant is open on Sundays and closed on Augusts.",
        ),
    ];
    each(&pairs, w::weekday_month_abbreviation);
    let pairs = [
        (
            "Feluda handed over the blue attaché case before he sat down.",
            "Feluda handed over the blue attache case before he sat down.",
        ),
        ("She lookèd east an she lookèd west.", "She looked east an she looked west."),
        ("un garçon", "un garcon"),
        ("Karel Čapek was a Czech writer", "Karel Capek was a Czech writer"),
        ("HNO₃-oplossing", "HNO-oplossing"),
        ("Jonathan was a Seagull.", "Jonathan was a Seagull."),
    ];
    each(&pairs, c::diacritic_removal);
    let pairs = [
        (
            ANDREW,
            "andreway inallyfay eturnedray ethay enchfray ookbay otay ischray atthay iay oughtbay astlay eekway",
        ),
        (
            "Unfortunately, the rommate took the dude's beer that he bought for himself instead of the beer left over from the party.",
            "unfortunatelyay, ethay ommateray ooktay ethay ude'sday eerbay atthay ehay oughtbay orfay imselfhay insteaday ofay ethay eerbay eftlay overay omfray ethay artypay.",
        ),
        ("Long time no see", "onglay imetay onay eesay"),
        ("Where's the toilet?", "ere'swhay ethay oilettay?"),
        ("My hovercraft is full of eels", "ymay overcrafthay isay ullfay ofay eelsay"),
    ];
    each(&pairs, w::pig_latin);
}

#[test]
fn genders_are_those_of_nl_augmenter_and_helm() {
    let pairs = [
        ("he, she, man?", "she, he, woman?"),
        ("hehe he!", "hehe she!"),
        (
            "son-in-law, is it yours? No, it's step-father's...",
            "daughter-in-law, is it yours? No, it's step-mother's...",
        ),
    ];
    each(&pairs, w::gender_swap);
    let pairs = [
        (
            "Did she mention that he was coming with his parents and their friends?",
            "Did she mention that she was coming with her parents and their friends?",
        ),
        ("She didn't, perhaps he didn't tell her!", "She didn't, perhaps she didn't tell her!"),
        // HELM leaves words at the borders of a text as they are (its issue 1958); they are replaced here.
        ("He saw him", "She saw her"),
    ];
    each(&pairs, w::gender_pronouns);
    let pairs = [
        ("His grandsons looked a lot like their dad.", "His granddaughters looked a lot like their mom."),
        ("How did their father look like?", "How did their mother look like?"),
    ];
    each(&pairs, w::gender_terms);
}

#[test]
fn countries_are_those_of_nl_augmenter() {
    let pairs = [
        ("I love the pastel colours", "I love the pastel colors"),
        ("That shop is so unorganised", "That store is so unorganized"),
        ("Carry encyclopedia on vacation", "Carry encyclopaedia on holiday"),
        ("He was so ill that he had to be hospitalized", "He was so sick that he had to be hospitalised"),
    ];
    each(&pairs, w::american_british);
    assert_eq!(
        w::american_british("Check the line:\tthe CENTER, Neighbours."),
        "Check the line:\tthe CENTRE, Neighbors."
    );
}

/// Words of num2words 0.5.14, without its commas, and texts of NL-Augmenter's test file.
#[test]
fn numbers_are_those_of_num2words() {
    let pairs = [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety-nine"),
        (101, "one hundred and one"),
        (110, "one hundred and ten"),
        (1000, "one thousand"),
        (1001, "one thousand and one"),
        (1100, "one thousand one hundred"),
        (12_345, "twelve thousand three hundred and forty-five"),
        (1_000_005, "one million and five"),
        (6_287_822, "six million two hundred and eighty-seven thousand eight hundred and twenty-two"),
        (1_000_000_000, "one billion"),
    ];
    for (n, wanted) in pairs {
        assert_eq!(numbers::cardinal(n), wanted);
    }
    let pairs = [
        ("Please buy me 20 apples", "Please buy me twenty apples"),
        ("The accuracy is 99.22", "The accuracy is ninety-nine point two two"),
        ("The size is 200,000,000.65 L", "The size is two hundred million point six five L"),
        ("The size is (12,235)", "The size is (twelve thousand two hundred and thirty-five)"),
        ("Slow down, it's still 5.05", "Slow down, it's still five point zero five"),
        (
            "in 335 mL of 0.425 M NH4NO3?",
            "in three hundred and thirty-five mL of zero point four two five M NH4NO3?",
        ),
        ("Valero is at 200 Alester Avenue.", "Valero is at two hundred Alester Avenue."),
        ("four games, 8 teams, 2.", "four games, eight teams, two."),
    ];
    each(&pairs, numbers::number_to_word);
    for same in
        ["on 14/07/2021 at 6pm", "at 5:10", "C8H18", "$12,235", "007", "1,23", "1.2.3", "12345678901234567"]
    {
        assert_eq!(numbers::number_to_word(same), same);
    }
}

#[test]
fn names_lists_and_rates_are_read() {
    let list = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Perturbation::list(&names).map(|list| list.iter().map(Perturbation::label).collect::<Vec<_>>())
    };
    assert_eq!(list(&["typos", "typos:0.1", "lowercase"]).unwrap(), ["typos:0.1", "lowercase"]);
    assert_eq!(list(&["typos:0.5"]).unwrap(), ["typos:0.5"]);
    assert_eq!(list(&["all"]).unwrap().len(), TABLE.len());
    assert_eq!(list(&["fairness"]).unwrap().len(), 4);
    assert!(list(&["typo"]).unwrap_err().to_string().contains("butter_fingers"));
    assert!(list(&["typos:2"]).unwrap_err().to_string().contains("0 to 1"));
    assert!(list(&["typos:x"]).unwrap_err().to_string().contains("\"x\""));
    assert!(list(&["lowercase:0.5"]).unwrap_err().to_string().contains("without a rate"));
    assert!(list(&["space:NaN"]).is_err());
    let mut names: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TABLE.len(), "each name once");
}

/// An entry that changes nothing of a text with everything in it would never be seen.
#[test]
fn every_perturbation_changes_a_text() {
    let text = "He said it is already Monday, 20 Czechs (Čapek too) came to the centre with his father, it's what I know, that is true. ";
    let text = text.repeat(8);
    for one in Perturbation::all() {
        let changed = one.apply(&text, &mut seed(3));
        assert_ne!(changed, text, "{one:?}");
        assert_eq!(one.apply(&text, &mut seed(3)), changed, "{one:?}: the same numbers, the same text");
    }
}

proptest! {
    #[test]
    fn any_text_has_a_perturbation(text in "\\PC*|[a-zA-Z0-9,.' \\-\n]*", number in 0u64..1000) {
        for one in Perturbation::all() {
            let changed = one.apply(&text, &mut seed(number));
            prop_assert!(changed.len() <= 64 * (text.len() + 1));
        }
    }

    #[test]
    fn typing_errors_keep_the_number_of_characters(text in "[a-zA-Z,. ]*", number in 0u64..1000) {
        for name in ["butter_fingers", "typos", "swap_characters", "change_char_case", "underscore_trick"] {
            let one = Perturbation::list(&[name.to_owned()]).unwrap()[0];
            prop_assert_eq!(one.apply(&text, &mut seed(number)).chars().count(), text.chars().count());
        }
    }
}
