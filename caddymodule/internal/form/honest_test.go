package form

import (
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// logins are the fields and arrays of a site that takes logins, as its zones ask for them.
var logins = planNames{
	fields: []string{"log", "pwd", "username", "password", "pma_password", "user[email]", "user[password]", "u", "p", "wpPassword"},
	arrays: []string{"", "rows", "items", "menu-item-db-id", "order.line_items_attributes", "order.line_items_attributes.#.id"},
}

type planNames struct{ fields, arrays []string }

// pairsOf are a form's fields in turn, name and value.
func pairsOf(format string, n int) string {
	var form strings.Builder
	for i := range n {
		for pair := range strings.SplitSeq(strings.ReplaceAll(format, "#", fmt.Sprint(1000+i)), "&") {
			name, value, _ := strings.Cut(pair, "=")
			form.WriteString(url.QueryEscape(name) + "=" + url.QueryEscape(value) + "&")
		}
	}
	return form.String()
}

const (
	menu = "menu-item-db-id[#]=#&menu-item-object-id[#]=7&menu-item-object[#]=page&menu-item-parent-id[#]=0&menu-item-position[#]=#&menu-item-type[#]=post_type&menu-item-title[#]=Über uns; \"und\" mehr&menu-item-url[#]=https://example.com/?a=b%20c&menu-item-description[#]=&menu-item-attr-title[#]=&menu-item-target[#]=&menu-item-classes[#]=&menu-item-xfn[#]="

	classic = "_wpnonce=a1b2c3&_wp_http_referer=/wp-admin/post.php?post=7&action=edit&user_ID=1&originalaction=editpost&post_author=1&post_type=post&original_post_status=publish&referredby=https://example.com/wp-admin/edit.php&post_ID=7&meta-box-order-nonce=x&post_title=Password=\"x\"; <password>&content=<p>log in with pwd=secret; log=admin</p>&hidden_post_status=publish&post_password=&hidden_post_password=&visibility=public&mm=11&tax_input[post_tag][]=a&post_category[]=0&post_category[]=3&newcategory=New&metakeyselect=#NONE#&meta[12][key]=k&meta[12][value]=v&advanced_view=1&comment_status=open&post_author_override=1&post_name=x"

	checkout = "billing_first_name=Zoë&billing_last_name=O'Hara&billing_company=&billing_country=DE&billing_address_1=A-Straße 1&billing_postcode=10115&billing_city=Berlin&billing_phone=+49 30 1&billing_email=z@example.com&account_username=&account_password=&shipping_first_name=&order_comments=50% off?&shipping_method[0]=flat_rate:1&payment_method=cod&wc-stripe-payment-token=new&terms=on&terms-field=1&woocommerce-process-checkout-nonce=a1&_wp_http_referer=/?wc-ajax=update_order_review"

	nested = "utf8=✓&_method=patch&authenticity_token=a+b/c==&order[name]=x&order[born(1i)]=2026&order[born(2i)]=11&order[tag_ids][]=&order[tag_ids][]=3&order[address_attributes][city]=Köln&commit=Update Order"
	lines  = "&order[line_items_attributes][#][id]=#&order[line_items_attributes][#][quantity]=2&order[line_items_attributes][#][_destroy]=false"
)

// partsOf writes a form of parts as browsers do.
func partsOf(t *testing.T, write func(w *multipart.Writer)) (contentType, body string) {
	t.Helper()
	var text strings.Builder
	w := multipart.NewWriter(&text)
	check.OK(t, w.SetBoundary("----WebKitFormBoundary7MA4YWxkTrZu0gW"))
	write(w)
	check.OK(t, w.Close())
	return w.FormDataContentType(), text.String()
}

// TestHonestBodies: all is clear in what sites and programs send.
func TestHonestBodies(t *testing.T) {
	block := `{"id":7,"title":"Password: \"x\"","content":"<!-- wp:paragraph {\"align\":\"left\"} -->\n<p>pwd=x&amp;logs=y \u003cpassword\u003e</p>\n<!-- /wp:paragraph -->","excerpt":null,"meta":{"_x":[],"password":""},"categories":[1,2],"blocks":[[{"a":-1.5e3}]],"sticky":false}`
	upload, photo := partsOf(t, func(w *multipart.Writer) {
		_ = w.WriteField("post_id", "0")
		_ = w.WriteField("_wpnonce", "a1")
		_ = w.WriteField("action", "upload-attachment")
		file, _ := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="async-upload"; filename="Ein Foto; %2250%%22 (1) – Kopie's.jpg"`}, "Content-Type": {"image/jpeg"}})
		_, _ = file.Write([]byte("\xff\xd8\xff\xe0\x00\x10JFIF--x\r\n--\r\nlog=<pwd>\x00\xff"))
	})
	importing, sql := partsOf(t, func(w *multipart.Writer) {
		for _, name := range []string{"db", "token", "import_type", "format", "charset_of_file", "skip_queries", "fk_checks", "sql_compatibility", "ldi_replace", "csv_columns", "MAX_FILE_SIZE"} {
			_ = w.WriteField(name, "x;\r\ny")
		}
		part, _ := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="import_file"; filename="dump.sql.gz"`}, "Content-Type": {"application/x-gzip"}})
		_, _ = part.Write([]byte("INSERT INTO users (log, pwd) VALUES ('a;b', \"password\");\r\n"))
	})
	for _, test := range []struct{ about, contentType, body, want string }{ // what is not absent or 0
		{"WordPress, login", formType, "log=admin&pwd=a%26b&rememberme=forever&wp-submit=Log+In&redirect_to=https%3A%2F%2Fexample.com%2Fwp-admin%2F&testcookie=1", "log=admin pwd=a&b"},
		{"WordPress, a menu of 300 items", formType, "action=update&menu=3&menu-name=Main&" + pairsOf(menu, 300) + "save_menu=Save+Menu", "menu-item-db-id:300"},
		{"WordPress, a menu as JSON in a form", formType, "nav-menu-data=" + url.QueryEscape(`[{"name":"menu-item-db-id[1]","value":"1"}]`) + "&menu=3", ""},
		{"WordPress, classic editor", formType, pairsOf(strings.ReplaceAll(classic, "#", ""), 1), ""},
		{"WordPress, block editor", "application/json", block, ""},
		{"WordPress, a post by a program as text", "text/plain;charset=UTF-8", block, ""},
		{"WordPress, heartbeat", formType + "; charset=UTF-8", "data%5Bwp-refresh-post-lock%5D%5Bpost_id%5D=7&interval=10&_nonce=a&action=heartbeat&screen_id=post&has_focus=true", ""},
		{"WordPress, a photo", upload, photo, ""},
		{"WordPress, REST upload", "image/jpeg", "\xff\xd8\xff\xe0\x00\x10JFIF<u p=\"u\"", ""},
		{"WooCommerce, checkout", formType + "; charset=UTF-8", pairsOf(checkout, 1), ""},
		{"WooCommerce, blocks", "application/json", `{"billing_address":{"first_name":"Zoë","email":"z@example.com"},"shipping_address":{},"payment_method":"cod","payment_data":[{"key":"wc-cod","value":""}],"customer_password":"x","extensions":{}}`, ""},
		{"phpMyAdmin, import", importing, sql, ""},
		{"phpMyAdmin, a query", formType + "; charset=UTF-8", pairsOf("db=x&table=users&sql_query=SELECT * FROM `users` WHERE `log` = 'a' AND pwd=\"b\";&ajax_request=true&_nocache=1", 1), ""},
		{"Rails, nested attributes", formType, pairsOf(nested, 1) + pairsOf(lines[1:], 40), "order.line_items_attributes:120 order.line_items_attributes.#.id:40"},
		{"Rails, nested attributes as JSON", "application/json; charset=utf-8", `{"order":{"name":"x","line_items_attributes":[{"id":1},{"id":2}]}}`, "order.line_items_attributes:2"},
		{"Devise", formType, pairsOf("utf8=✓&authenticity_token=a+b/c==&user[email]=a@example.com&user[password]=s3cret!&user[remember_me]=0&user[remember_me]=1&commit=Log in", 1), "user[email]=a@example.com user[password]=s3cret!"},
		{"Devise as JSON", "application/json", `{"user":{"email":"a@example.com","password":"s\u00e4cret","remember_me":true}}`, "user[email]=a@example.com user[password]=säcret"},
		{"DokuWiki", formType + "; charset=UTF-8", "sectok=a&id=start&do=login&u=alice&p=secret&r=1", "u=alice p=secret"},
		{"MediaWiki", multiType, strings.ReplaceAll("--x\r\nContent-Disposition: form-data; name=\"wpPassword\"\r\n\r\nsecret\r\n--x\r\nContent-Disposition: form-data; name=\"wpTextbox1\"\r\n\r\n"+strings.Repeat("== pwd=x ==\r\n", 9999)+"\r\n--x--\r\n", "\n\n", "\n"), "wpPassword=secret"},
		{"ASP.NET MVC", formType, pairsOf("Lines[0].Name=x&Lines[0].Password=&Lines[1].Name=y&__RequestVerificationToken=a_b-c&ctl00$MainContent$txtUser=x", 1), ""},
		{"an import of rows", "application/json", "{\"rows\":[" + strings.Repeat(`{"id":1,"name":"x","tags":[1,2]},`, 19_999) + "{}]}", "rows:20000"},
		{"logs of events", "application/x-ndjson", strings.Repeat("{\"level\":\"info\",\"items\":[1]}\n", 99), ""},
		{"curl -d with JSON", formType, `{"items":[1,2,3],"a":"b=c&d"}`, "items:3"},
		{"Chromium, a form in Shift_JIS", formType, "%96%BC%91O=x&%83%81%81%5B%83%8B%5B%8FZ%8F%8A%5D=y", ""},
		{"a page as HTML", "text/html; charset=utf-8", `<!doctype html><html lang="en"><h1 class="login">My password is no pwd, and a=b.</h1>`, ""},
		{"a feed", "application/atom+xml", `<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom"><title>log</title></entry>`, ""},
		{"gRPC", "application/grpc", "\x00\x00\x00\x00\x07\n\x05admin", ""},
		{"Java's client", multiType, "--x\r\nContent-Disposition: form-data; name=\"username\"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n\r\nadmin\r\n--x--\r\n", "username=admin"},
		{".NET's client", `multipart/form-data; boundary="0b8a9d1e-7f8c-4e0b-9a52-3d1b1f6c7a11"`, strings.ReplaceAll("--x\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=username\r\n\r\nadmin\r\n--x\r\nContent-Type: image/png\r\nContent-Disposition: form-data; name=file; filename=a.png; filename*=utf-8''a.png\r\n\r\n\x00\r\n--x--\r\n", "--x", "--0b8a9d1e-7f8c-4e0b-9a52-3d1b1f6c7a11"), "username=admin"},
		{"python-requests", "multipart/form-data; boundary=5d1a", "--5d1a\r\nContent-Disposition: form-data; name=\"username\"\r\n\r\nadmin\r\n--5d1a\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''%C3%A9.txt\r\n\r\nx\r\n--5d1a--\r\n", "username=admin"},
		{"Retrofit", multiType, "--x\r\nContent-Disposition: form-data; name=\"username\"\r\nContent-Transfer-Encoding: binary\r\nContent-Type: application/json; charset=UTF-8\r\nContent-Length: 7\r\n\r\n\"admin\"\r\n--x--\r\n", "username=admin"},
		{"Retrofit, with an encoding", "multipart/form-data; boundary=4f8e2e6a-2d3c-4f0e-9d0a-6f1d2f3b4c5d", strings.ReplaceAll("--x\r\nContent-Disposition: form-data; name=\"username\"\r\nContent-Transfer-Encoding: 8-bit\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n\r\nadmin\r\n--x\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"a b.jpg\"\r\nContent-Transfer-Encoding: 8bit\r\nContent-Type: image/*\r\nContent-Length: 1\r\n\r\n\xff\r\n--x--\r\n", "--x", "--4f8e2e6a-2d3c-4f0e-9d0a-6f1d2f3b4c5d"), "username=admin"},
		{"Firefox", "multipart/form-data; boundary=---------------------------293582696224464", strings.ReplaceAll("--x\r\nContent-Disposition: form-data; name=\"user[email]\"\r\n\r\na@example.com\r\n--x\r\nContent-Disposition: form-data; name=\"files[]\"; filename=\"\"\r\nContent-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n", "--x", "-----------------------------293582696224464"), "user[email]=a@example.com"},
		{"fetch of Node.js", "multipart/form-data; boundary=----formdata-undici-049113384190", strings.ReplaceAll("--x\r\nContent-Disposition: form-data; name=\"p\"\r\n\r\nsecret\r\n--x\r\nContent-Disposition: form-data; name=\"rows[0][id]\"; filename=\"blob\"\r\nContent-Type: application/json\r\n\r\n{}\r\n--x--\r\n", "--x", "------formdata-undici-049113384190"), "p=secret rows:1"},
		{"aiohttp", "multipart/form-data; boundary=5b3f4e", "--5b3f4e\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=\"username\"\r\n\r\nadmin\r\n--5b3f4e--\r\n", "username=admin"},
		{"jQuery", formType + "; charset=UTF-8", "user%5Bemail%5D=a%40example.com&items%5B%5D=1&items%5B%5D=2&x%5By%5D%5B0%5D%5Bz%5D=1", "user[email]=a@example.com items:2"},
		{"phpMyAdmin, login", formType, "set_session=a1&pma_username=root&pma_password=s%3Bcret&server=1&target=index.php&lang=en&token=7d", "pma_password=s;cret"},
	} {
		r := bodyOf(t, planOf(t, logins.fields, logins.arrays), test.contentType, []byte(test.body))
		counted := !slices.ContainsFunc([]string{"image/", "text/html", "application/atom", "application/grpc", "application/x-ndjson"}, func(kind string) bool { return strings.HasPrefix(test.contentType, kind) })
		check.Equal(t, r.all(counted), test.want, "%s", test.about)
	}
}

// all returns what is not absent or 0. The arrays in types that are not understood are unclear.
func (r *Reading) all(arrays bool) string {
	var all []string
	for i, name := range logins.fields {
		if got := r.field(i); got != "absent" {
			all = append(all, name+got)
		}
	}
	for i, path := range logins.arrays {
		if got := r.count(len(logins.fields) + i); arrays && got != "0" {
			all = append(all, path+":"+got)
		}
	}
	return strings.Join(all, " ")
}

// TestUpload streams a video of 100 MB.
func TestUpload(t *testing.T) {
	contentType, body := partsOf(t, func(w *multipart.Writer) {
		_ = w.WriteField("name", "video.mp4")
		_, _ = w.CreateFormFile("async-upload", "video.mp4")
		_ = w.WriteField("log", "admin")
	})
	at := strings.Index(body, "\r\n\r\n\r\n") + 4
	r := planOf(t, logins.fields, logins.arrays).Read()
	video := io.LimitReader(&noise{}, 100<<20)
	r.Body(contentType, "", -1, io.MultiReader(strings.NewReader(body[:at]), video, strings.NewReader(body[at:])))
	check.Equal(t, r.all(true), "log=admin")
	r = planOf(t, logins.fields, logins.arrays).Read()
	r.Body("video/mp4", "", -1, io.LimitReader(&noise{}, 4<<20))
	check.Equal(t, r.all(false), "", "of a video")
}

// noise never ends, and looks like nothing.
type noise struct {
	block []byte
	at    int
}

func (v *noise) Read(p []byte) (int, error) {
	if v.block == nil {
		v.block = make([]byte, 1<<20+1)
		_, _ = rand.NewChaCha8([32]byte{}).Read(v.block)
	}
	n := copy(p, v.block[v.at:])
	v.at = (v.at + n) % len(v.block)
	return n, nil
}
