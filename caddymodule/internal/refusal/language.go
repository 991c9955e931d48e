package refusal

import (
	"strconv"
	"strings"
	"time"
)

// A language is one in which people are told of a refusal. No sentence in it has
// a character that HTML gives a meaning.
type language struct {
	tag string // BCP 47

	title, reason string
	wait          string // with one %s for the time
	reload        string // the page will do that when the wait is over
	loading       string // it does
	resend        string // what to do about a request that the page cannot repeat
	resendNow     string // it is time to
	again         string // the text of the link that loads the page again

	// Of a refusal that waiting cannot fix.
	never, neverReason string

	code string // what stands before a support code

	forms  [3][]string     // of seconds, minutes and hours: what follows a number, in each plural form
	plural func(int64) int // the form for a number; the last one if there are fewer
}

// languages are the ten most common ones of websites (W3Techs), the default first.
var languages = [...]language{
	{
		tag: "en", title: "One moment, please", reason: "This site is receiving too many requests right now.",
		wait: "Please wait %s.", reload: "This page will then reload by itself.", loading: "Loading …",
		resend:    "Your input has not been processed. After the wait, please go back and send it again.",
		resendNow: "You can now go back and send it again.",
		again:     "Try again",
		never:     "Sorry, that is not possible", neverReason: "This site does not accept this request. Waiting or reloading will not help.",
		code: "Support code:", forms: [3][]string{{" second", " seconds"}, {" minute", " minutes"}, {" hour", " hours"}}, plural: oneOrMore,
	},
	{
		tag: "es", title: "Un momento, por favor", reason: "Este sitio está recibiendo demasiadas solicitudes en este momento.",
		wait: "Por favor, espere %s.", reload: "Después, esta página se recargará automáticamente.", loading: "Cargando…",
		resend:    "Los datos enviados no se han procesado. Después de la espera, vuelva atrás y envíelos de nuevo.",
		resendNow: "Ya puede volver atrás y enviarlos de nuevo.",
		again:     "Volver a intentarlo",
		never:     "Lo sentimos, no es posible", neverReason: "Este sitio no acepta esta solicitud. Esperar o recargar la página no servirá de nada.",
		code: "Código de soporte:", forms: [3][]string{{" segundo", " segundos"}, {" minuto", " minutos"}, {" hora", " horas"}}, plural: oneOrMore,
	},
	{
		tag: "de", title: "Einen Moment, bitte", reason: "Bei dieser Website gehen gerade zu viele Anfragen ein.",
		wait: "Bitte warten Sie %s.", reload: "Danach lädt diese Seite von selbst neu.", loading: "Wird geladen …",
		resend:    "Ihre Eingabe wurde nicht verarbeitet. Bitte gehen Sie nach der Wartezeit zurück und senden Sie sie noch einmal.",
		resendNow: "Sie können jetzt zurückgehen und sie noch einmal senden.",
		again:     "Erneut versuchen",
		never:     "Das ist leider nicht möglich", neverReason: "Diese Website nimmt diese Anfrage nicht an. Warten oder Neuladen hilft nicht.",
		code: "Support-Code:", forms: [3][]string{{" Sekunde", " Sekunden"}, {" Minute", " Minuten"}, {" Stunde", " Stunden"}}, plural: oneOrMore,
	},
	{
		tag: "ja", title: "少々お待ちください", reason: "現在、このサイトにアクセスが集中しています。",
		wait: "あと%sお待ちください。", reload: "その後、このページは自動的に再読み込みされます。", loading: "読み込み中…",
		resend:    "送信された内容は処理されていません。待ち時間が過ぎたら、前のページに戻ってもう一度送信してください。",
		resendNow: "前のページに戻って、もう一度送信できます。",
		again:     "もう一度読み込む",
		never:     "このリクエストは受け付けられません", neverReason: "お待ちいただいても、再読み込みしても、結果は変わりません。",
		code: "サポートコード：", forms: [3][]string{{"秒"}, {"分"}, {"時間"}}, plural: always,
	},
	{
		tag: "fr", title: "Un instant, s’il vous plaît", reason: "Ce site reçoit trop de requêtes en ce moment.",
		wait: "Veuillez patienter %s.", reload: "Cette page se rechargera ensuite automatiquement.", loading: "Chargement…",
		resend:    "Les données envoyées n’ont pas été traitées. Après l’attente, revenez en arrière et envoyez-les de nouveau.",
		resendNow: "Vous pouvez maintenant revenir en arrière et les envoyer de nouveau.",
		again:     "Réessayer",
		never:     "Désolé, ce n’est pas possible", neverReason: "Ce site n’accepte pas cette requête. Attendre ou recharger la page n’y changera rien.",
		code: "Code d’assistance :", forms: [3][]string{{" seconde", " secondes"}, {" minute", " minutes"}, {" heure", " heures"}}, plural: upToOneOrMore,
	},
	{
		tag: "pt", title: "Um momento, por favor", reason: "Este site está com solicitações demais neste momento.",
		wait: "Por favor, aguarde %s.", reload: "Depois, esta página será recarregada automaticamente.", loading: "Carregando…",
		resend:    "Os dados enviados não foram processados. Depois da espera, volte e envie-os novamente.",
		resendNow: "Agora você pode voltar e enviá-los novamente.",
		again:     "Tentar novamente",
		never:     "Lamentamos, isso não é possível", neverReason: "Este site não aceita esta solicitação. Esperar ou recarregar a página não vai adiantar.",
		code: "Código de suporte:", forms: [3][]string{{" segundo", " segundos"}, {" minuto", " minutos"}, {" hora", " horas"}}, plural: upToOneOrMore,
	},
	{
		tag: "ru", title: "Минутку, пожалуйста", reason: "Сейчас на этот сайт поступает слишком много запросов.",
		wait: "Подождите %s.", reload: "Затем эта страница обновится автоматически.", loading: "Загрузка…",
		resend:    "Отправленные данные не обработаны. После ожидания вернитесь назад и отправьте их ещё раз.",
		resendNow: "Теперь можно вернуться назад и отправить их ещё раз.",
		again:     "Повторить попытку",
		never:     "К сожалению, это невозможно", neverReason: "Этот сайт не принимает такой запрос. Ожидание или обновление страницы не поможет.",
		code: "Код для службы поддержки:", forms: [3][]string{{" секунду", " секунды", " секунд"}, {" минуту", " минуты", " минут"}, {" час", " часа", " часов"}}, plural: russian,
	},
	{
		tag: "it", title: "Un momento, per favore", reason: "Questo sito sta ricevendo troppe richieste in questo momento.",
		wait: "La preghiamo di attendere %s.", reload: "Poi questa pagina si ricaricherà automaticamente.", loading: "Caricamento…",
		resend:    "I dati inviati non sono stati elaborati. Dopo l’attesa, torni indietro e li invii di nuovo.",
		resendNow: "Ora può tornare indietro e inviarli di nuovo.",
		again:     "Riprova",
		never:     "Spiacenti, non è possibile", neverReason: "Questo sito non accetta questa richiesta. Attendere o ricaricare la pagina non servirà.",
		code: "Codice di assistenza:", forms: [3][]string{{" secondo", " secondi"}, {" minuto", " minuti"}, {" ora", " ore"}}, plural: oneOrMore,
	},
	{
		tag: "nl", title: "Een ogenblik geduld", reason: "Deze website krijgt op dit moment te veel verzoeken.",
		wait: "Wacht alstublieft %s.", reload: "Daarna wordt deze pagina vanzelf opnieuw geladen.", loading: "Laden …",
		resend:    "Uw invoer is niet verwerkt. Ga na de wachttijd terug en verstuur deze opnieuw.",
		resendNow: "U kunt nu teruggaan en deze opnieuw versturen.",
		again:     "Opnieuw proberen",
		never:     "Sorry, dit is niet mogelijk", neverReason: "Deze website accepteert dit verzoek niet. Wachten of opnieuw laden helpt niet.",
		code: "Supportcode:", forms: [3][]string{{" seconde", " seconden"}, {" minuut", " minuten"}, {" uur"}}, plural: oneOrMore,
	},
	{
		tag: "pl", title: "Proszę chwilę poczekać", reason: "Ta witryna otrzymuje w tej chwili zbyt wiele żądań.",
		wait: "Pozostało do odczekania: %s.", reload: "Następnie ta strona odświeży się automatycznie.", loading: "Ładowanie…",
		resend:    "Wysłane dane nie zostały przetworzone. Po odczekaniu proszę wrócić i wysłać je ponownie.",
		resendNow: "Można teraz wrócić i wysłać je ponownie.",
		again:     "Spróbuj ponownie",
		never:     "Przepraszamy, to niemożliwe", neverReason: "Ta witryna nie przyjmuje tego żądania. Czekanie ani odświeżanie strony nie pomoże.",
		code: "Kod dla pomocy technicznej:", forms: [3][]string{{" sekunda", " sekundy", " sekund"}, {" minuta", " minuty", " minut"}, {" godzina", " godziny", " godzin"}}, plural: polish,
	},
}

// The plural rules are CLDR's for whole numbers. Form 0 is its "one", 1 its "few",
// 2 all others.

func always(int64) int { return 2 }

func oneOrMore(n int64) int {
	if n == 1 {
		return 0
	}
	return 2
}

func upToOneOrMore(n int64) int { return oneOrMore(max(n, 1)) }

func russian(n int64) int {
	if n%10 == 1 && n%100 != 11 {
		return 0
	}
	return fewOrMany(n)
}

func polish(n int64) int {
	if n == 1 {
		return 0
	}
	return fewOrMany(n)
}

func fewOrMany(n int64) int {
	if last, teen := n%10, n/10%10 == 1; 2 <= last && last <= 4 && !teen {
		return 1
	}
	return 2
}

// units returns the forms as the page's script reads them.
func (l *language) units() string {
	units := make([]string, len(l.forms))
	for i, forms := range l.forms {
		units[i] = strings.Join(forms, ",")
	}
	return strings.Join(units, "|")
}

// appendWait appends a time as people say it, rounded up.
func (l *language) appendWait(text []byte, d time.Duration) []byte {
	n, unit := readable(d)
	forms := l.forms[unit]
	return append(strconv.AppendInt(text, n, 10), forms[min(l.plural(n), len(forms)-1)]...)
}

// mostLanguages is how much of the Accept-Language headers is looked at. Browsers
// send less than 100 bytes.
const mostLanguages = 1 << 10

// preferred returns the index of the language that a client wants most, and English if it
// wants none.
func preferred(accept []string) int { return heaviest(accept, mostLanguages, spoken, 0) }

// spoken returns the index of the language of a tag such as de or pt-BR, or -1.
func spoken(tag string) int {
	if len(tag) < 2 || len(tag) > 2 && tag[2] != '-' {
		return -1
	}
	first, second := tag[0]|0x20, tag[1]|0x20 // in lower case, if they are letters
	for i := range languages {
		if tag := languages[i].tag; tag[0] == first && tag[1] == second {
			return i
		}
	}
	return -1
}
