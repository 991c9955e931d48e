<?php
use Illuminate\Http\Request;

$router = app('router');
$router->get('/', fn () => 'home');
$router->get('/login', fn () => csrf_token());
$router->post('/login', function (Request $request) {
    if (!auth()->attempt($request->only('email', 'password'))) {
        return response('wrong', 422);
    }
    $request->session()->regenerate();
    return redirect('/account');
});
$router->get('/account', fn () => auth()->check() ? 'hello ' . auth()->id() : response('who?', 401));
$router->post('/logout', function (Request $request) {
    auth()->logout();
    $request->session()->invalidate();
    $request->session()->regenerateToken();
    return redirect('/');
});
